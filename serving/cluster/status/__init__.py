"""What of Tandem runs in a namespace, what waits and why: `tandem cluster status`.

`collect` reads, `scheduling` and `pod_problems` find why a pod does not serve (pure), `cold_starts` where a GPU pool's start spent
its time (pure), `judge` what serves (pure), `command` prints. Rule: what this user may not see is None and is said to be unknown.
"""
