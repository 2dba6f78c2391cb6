"""posterity on the command line: `python -m posterity`."""

from posterity.interfaces.cli import main

main()
