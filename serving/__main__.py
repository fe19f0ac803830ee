import sys

try:
    from serving.cli import main
except KeyboardInterrupt:  # while the first imports are under way
    sys.exit(130)

main()
