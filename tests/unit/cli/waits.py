"""A process that waits until it is told to end."""

import time

if __name__ == "__main__":
    time.sleep(600)
