"""A campaign as a Job beside the gateway, its results brought home: `tandem cluster campaign`.

`finding` knows the gateway of a release by its objects (pure), `objects` makes what is created (pure), `in_the_pod` is the program that
the pod runs, `framing` puts its results together again (pure), `standing` says how far a pod is (pure), `requests` asks, `following`
stays with the Job until it is over, `ending` writes and tidies up, `leaving` has the words for what is left (pure), `found_again` finds
the Job that `--attach` means, `command` is the verb. Rule: what is made here goes with its Job, by owner references.
"""
