"""``python -m entrepot.cli`` is ``entrepot``."""

from entrepot.cli import main

if __name__ == "__main__":
    main()
