"""The dashboard *Market*: orders, how long they take, and who makes them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import units

from observability.grafana.panels import (
    NONE_IS_BAD,
    NONE_IS_GOOD,
    answers,
    graph,
    happened,
    number,
    of,
    page,
    percentiles,
    rate,
)

# What the alerts of prometheus/rules.yml compare with.
QUEUED_MANY = 100
OLDEST_S = 120
FAILED_SHARE = 0.05

OUTCOME_FAILED = 'outcome="failed"'
OUTCOMES = {"placed": "blue", "fulfilled": "green", "failed": "red", "cancelled": "orange"}
SUPPLIER_STATES = {"ready": "green", "busy": "blue", "suspect": "red", "draining": "orange"}


def market() -> board.Dashboard:
    """Orders, and who makes them."""
    failed = f"sum(rate({of('orders_total', OUTCOME_FAILED)}[5m]))"
    ended = f"sum(rate({of('orders_total')}[5m]))"
    now = [
        answers(
            "Broker",
            "Whether the broker answers the sidecar. While it does not, there are no other figures "
            "of the market. Alert: BrokerDown.",
            "broker_up",
        ),
        number(
            "Queued",
            "Orders that wait for a supplier. Clients that order ahead keep a queue; that it grows "
            "is what counts. Alert: QueueGrowing.",
            units.Short,
            f"sum({of('orders_queued')})",
            [(None, "blue"), (QUEUED_MANY, "orange")],
        ),
        number(
            "In flight",
            "Orders that a supplier has.",
            units.Short,
            f"sum({of('orders_in_flight')})",
        ),
        number(
            "Unservable",
            "Orders that wait, and match no pattern of any supplier. Alert: NobodyServes.",
            units.Short,
            f"sum({of('orders_unservable')})",
            NONE_IS_GOOD,
        ),
        number(
            "Oldest order",
            "How long the order that waits longest has waited for a supplier. Alert: "
            "OldestOrderTooOld.",
            units.Seconds,
            f"max({of('order_oldest_age_seconds')})",
            [(None, "green"), (OLDEST_S / 2, "orange"), (OLDEST_S, "red")],
        ),
        number(
            "Failed",
            "The share of FAILED among the orders that ended in the last five minutes; none if "
            "none ended. Alert: OrdersFailing.",
            units.PercentUnit,
            f"{failed} / {ended}",
            [(None, "green"), (FAILED_SHARE, "red")],
        ),
        number(
            "Suppliers",
            "Suppliers that are connected.",
            units.Short,
            f"sum({of('suppliers_connected')})",
            NONE_IS_BAD,
        ),
        number("Clients", "Clients that are connected.", units.Short, f"sum({of('clients')})"),
    ]
    orders = [
        graph(
            "Queue depth by product",
            "Orders that wait for a supplier. The 20 busiest products; the others together are "
            "`other`.",
            units.Short,
            [(f"sum by (product) ({of('orders_queued')})", "{{product}}")],
            steps=[(None, "transparent"), (QUEUED_MANY, "orange")],
            stacked=True,
        ),
        graph(
            "In flight by product",
            "Orders that a supplier has.",
            units.Short,
            [(f"sum by (product) ({of('orders_in_flight')})", "{{product}}")],
            stacked=True,
        ),
        graph(
            "Backlog by class of suppliers",
            "Orders that suppliers of these patterns have or could take: what to scale them by. An "
            "order that two classes could take is in both.",
            units.Short,
            [(f"sum by (supplier_class) ({of('backlog')})", "{{supplier_class}}")],
        ),
        graph(
            "Orders placed and ended",
            "Orders a second: placed, and ended, by how.",
            units.CountsPerSecond,
            [
                (f"sum({rate(of('orders_placed_total'))})", "placed"),
                (f"sum by (outcome) ({rate(of('orders_total'))})", "{{outcome}}"),
            ],
            colors=OUTCOMES,
        ),
    ]
    times = [
        graph(
            "Wait",
            "From an order until a supplier has it: the half, nine in ten and 99 in a hundred wait "
            "at most so long. Read from a histogram whose last bucket ends at 60 s.",
            units.Seconds,
            percentiles("order_wait_seconds"),
        ),
        graph(
            "Service",
            "From when a supplier has an order until it is made, likewise.",
            units.Seconds,
            percentiles("order_service_seconds"),
        ),
    ]
    suppliers = [
        graph(
            "Suppliers by state",
            "Ready takes orders, busy has some, suspect was silent, draining takes no more. One is "
            "in several, so they have no sum.",
            units.Short,
            [(f"sum by (state) ({of('suppliers')})", "{{state}}")],
            colors=SUPPLIER_STATES,
        ),
        graph(
            "Clients and suppliers",
            "Who is connected to the broker.",
            units.Short,
            [
                (f"sum({of('clients')})", "clients"),
                (f"sum({of('suppliers_connected')})", "suppliers"),
            ],
        ),
    ]
    faults = [
        graph(
            "Oldest order",
            "How long the order that waits longest has waited for a supplier. Alert: "
            "OldestOrderTooOld.",
            units.Seconds,
            [(f"max({of('order_oldest_age_seconds')})", "oldest")],
            steps=[(None, "transparent"), (OLDEST_S, "red")],
        ),
        graph(
            "Unservable orders",
            "Orders that wait, and match no pattern of any supplier. Alert: NobodyServes.",
            units.Short,
            [(f"sum({of('orders_unservable')})", "unservable")],
            steps=[(None, "transparent"), (1, "red")],
        ),
        graph(
            "Messages refused",
            "By reason, since the broker began. A reason has no line before its first.",
            units.Short,
            [(happened("messages_refused_total"), "{{reason}}")],
        ),
        graph(
            "Peers dropped",
            "By reason, since the broker began; those that left are among them. A reason has no "
            "line before its first.",
            units.Short,
            [(happened("peers_dropped_total"), "{{reason}}")],
        ),
    ]
    return page(
        "Entrepot: Market",
        "entrepot-market",
        "Orders, how long they take, and who makes them. Alerts and what to do: docs/runbook.md.",
        "now-1h",
        {
            "Now": now,
            "Orders": orders,
            "How long they take": times,
            "Parties": suppliers,
            "What goes wrong": faults,
        },
    )
