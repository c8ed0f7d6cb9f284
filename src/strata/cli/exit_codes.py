"""The exit codes of every command. Knows nothing else."""

EXIT_OK = 0
EXIT_ENGINE_FAILED = 1
EXIT_USER_MISTAKE = 2
EXIT_INTERRUPTED = 130  # as a shell counts a program that Ctrl-C ended
