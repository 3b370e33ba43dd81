"""``python -m ordinate`` is the ``ordinate`` command."""

from .cli import main

if __name__ == "__main__":
    main()
