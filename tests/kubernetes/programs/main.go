// Command programs is Kubernetes' own control plane, node programs, DNS and kubectl in one binary: the first argument says
// which. One link step instead of eight, and one file to keep in the cache.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	if len(os.Args) < 2 {
		fail("usage: programs etcd|coredns|kubectl|kubelet|kube-… [argument…]")
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "coredns":
		dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes"}
		coremain.Run()
	default:
		command, ok := commands[name]
		if !ok {
			fail("no such program: " + name)
		}
		os.Exit(cli.Run(command()))
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(2)
}
