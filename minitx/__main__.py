"""python -m minitx: the command line where no script is on the path."""

from minitx.cli.main import main

main()
