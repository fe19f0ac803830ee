"""What of Tandem runs in a namespace, what waits and why: `tandem cluster status`.

`snapshot` holds the values, `reading` makes them of the server's objects (pure), `collect` asks, `scheduling` and `pod_problems` find why a
pod does not serve (pure), `judge` says what serves (pure). Rule: what this user may not see is None and is said to be unknown.
"""
