from serving.cli import main

main()
