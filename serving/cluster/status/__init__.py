"""What of Tandem runs in a namespace, what waits and why: `tandem cluster status`.

`seen` holds the values, `reading` makes them of the server's objects (pure), `collect` asks, `why` finds the reason of a pod that does not
serve (pure), `judging` says what serves (pure), `text` prints. Rule: what this user may not see is None and is said to be unknown.
"""
