"""``python -m anchorlens``."""

from anchorlens.cli import main

main()
