"""What the market costs, beside forwarders without logic and beside the peer."""
