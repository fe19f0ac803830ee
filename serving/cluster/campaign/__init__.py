"""Runs a campaign as a Job beside the gateway and brings its results home: `tandem cluster campaign`.

`target` finds the gateway of a release among its objects (pure), `manifests` makes what is created (pure), `pod_program` is what the pod
runs, `framing` puts its results together again (pure), `job_status` says how far the Job is (pure), `follow` stays with it until it is
over, `ending` writes the results and tidies up, `command` is the verb. Rule: what is made
here goes with its Job, by owner references.
"""
