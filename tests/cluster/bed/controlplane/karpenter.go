package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	kwokcloud "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// scaleNodes is the real Karpenter over a cloud whose machines are Node objects that kwok looks after.
func scaleNodes() int {
	onLoopback()
	ctx, op := operator.NewOperator()
	types, err := kwokcloud.ConstructInstanceTypes(ctx)
	if err != nil {
		return failed(err)
	}
	cloud := kwokcloud.NewCloudProvider(ctx, booting{op.GetClient()}, types)
	priced := overlay.Decorate(cloud, op.GetClient(), op.InstanceTypeStore)
	cluster := state.NewCluster(op.Clock, op.GetClient(), priced)
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, priced, cloud, cluster, op.InstanceTypeStore)...).Start(ctx)
	return 0
}

// onLoopback: Karpenter listens on every interface and has no flag against it, but how its manager is made is a variable.
func onLoopback() {
	ctrl.NewManager = func(config *rest.Config, options ctrl.Options) (ctrl.Manager, error) {
		options.Metrics.BindAddress = "127.0.0.1" + options.Metrics.BindAddress
		options.HealthProbeBindAddress = "127.0.0.1" + options.HealthProbeBindAddress
		return manager.New(config, options)
	}
}

// booting lets machines join as kubelets do: not ready. A node without any Ready condition loses its not-ready taint at once and
// gets pods before it has booted; a kwok stage that sets the condition afterwards comes too late.
type booting struct{ client.Client }

func (c booting) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if node, ok := object.(*corev1.Node); ok {
		now := metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "booting",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}}
	}
	return c.Client.Create(ctx, object, options...)
}
