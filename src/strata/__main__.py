"""`python -m strata`: the same as the command `strata`. Knows nothing else."""

from strata.cli.app import main

if __name__ == "__main__":
    main()
