"""`python -m scool` is the command line."""

from scool.cli.main import main

if __name__ == "__main__":
    main()
