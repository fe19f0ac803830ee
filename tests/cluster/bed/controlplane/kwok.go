package main

import (
	"context"

	"github.com/spf13/pflag"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
)

// simulateKubelets is kwok: nodes become ready and pods run by the stages given with --config, and nothing is executed.
func simulateKubelets() int {
	// All programs here share one set of global flags, and kwok stops when it finds the --version that Kubernetes put there.
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ExitOnError)
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsWhitelist.UnknownFlags = true
	ctx, _ := log.InitFlags(context.Background(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	if err != nil {
		return failed(err)
	}
	command := cmd.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	if err := command.ExecuteContext(ctx); err != nil {
		return failed(err)
	}
	return 0
}
