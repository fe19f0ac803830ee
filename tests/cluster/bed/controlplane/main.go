// Every program of the simulated cluster in one binary; the name it is called by, or its first argument, chooses.
//
// One binary, because they share nearly all of their code: seven links would take as many minutes and gigabytes. What a program
// is started with stands in ../parts.py; nothing here knows of ports or files.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var programs = map[string]func() int{
	"certificates":            writeCertificates,
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 func() int { return run(kubectl.NewDefaultKubectlCommand()) },
	"kwok":                    simulateKubelets,
	"karpenter":               scaleNodes,
}

func run(command *cobra.Command) int {
	if err := cli.RunNoErrOutput(command); err != nil {
		return failed(err)
	}
	return 0
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func main() {
	name := filepath.Base(os.Args[0])
	if programs[name] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	program := programs[name]
	if program == nil {
		fmt.Fprintln(os.Stderr, "usage: controlplane PROGRAM [flags], PROGRAM being one of", slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	os.Exit(program())
}
