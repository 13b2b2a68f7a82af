package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

const (
	namespace = "default"
	// rootCA is the configmap with the cluster's CA that each namespace has.
	rootCA = "kube-root-ca.crt"
)

// full makes one pod with a volume of each common kind after another, as a cloud sends them, in turn with a floor that
// mounts the same.
func (b *bench) full(ctx context.Context) (err error) {
	say("one pod with token, configmap, secret and emptyDir, %d times", b.pods)
	d, err := b.newDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop(context.WithoutCancel(ctx))) }()
	for _, needed := range []metav1.Object{
		&v1.ConfigMap{
			TypeMeta: typeMeta("ConfigMap"), ObjectMeta: meta(rootCA),
			Data: map[string]string{"ca.crt": string(d.caPEM)},
		},
		&v1.ConfigMap{TypeMeta: typeMeta("ConfigMap"), ObjectMeta: meta("full"), Data: map[string]string{"a": "one"}},
		&v1.Secret{
			TypeMeta:   typeMeta("Secret"),
			ObjectMeta: meta("full"),
			Data:       map[string][]byte{"k": []byte("hush")},
			Type:       v1.SecretTypeOpaque,
		},
	} {
		if _, err := d.cloud.Put(needed); err != nil {
			return err
		}
	}
	whole, err := b.likeFull(ctx, d)
	if err != nil {
		return err
	}
	var ours, base lives
	for i := range b.pods + 1 {
		name := fmt.Sprintf("full-%d", i)
		floorUp, deleted, err := floorLife(ctx, whole, name)
		if err != nil {
			return err
		}
		up, gone, err := d.podLifecycle(ctx, fullPod(name))
		if err != nil {
			return err
		}
		if i > 0 { // the first warms things up
			ours.add(up, gone)
			base.add(floorUp, deleted.Stopped)
		}
	}
	b.latency(
		fmt.Sprintf("pod with token, configmap, secret and emptyDir, from its arrival to Running told, median of %d",
			b.pods), ours.up, base.up, "<= 1.10x")
	b.latency("delete -> gone told, of that pod, grace 1 s", ours.down, base.down, "<= grace used + 0.3 s")
	return b.fullBursts(ctx, d, whole)
}

// likeFull returns a floor that asks the runtime for what the agent asks for when it runs a full pod.
func (b *bench) likeFull(ctx context.Context, d *device) (*floor.Client, error) {
	const name = "like"
	if err := d.create(ctx, fullPod(name)); err != nil {
		return nil, err
	}
	id := strings.TrimPrefix(d.cloud.Status(podKey(name)).ContainerStatuses[0].ContainerID, "containerd://")
	whole := *b.floor
	var err error
	if whole.Like, err = floor.Of(ctx, b.floor.CRI, id, filepath.Join(b.floor.LogDir, "like-full")); err != nil {
		return nil, err
	}
	return &whole, d.remove(ctx, name)
}

func typeMeta(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Now()}
}

// fullPod is a pod with a volume of each common kind, with all that an API server adds to it.
func fullPod(name string) *v1.Pod {
	const token = "kube-api-access-x7k2p"
	pod := &v1.Pod{
		TypeMeta:   typeMeta("Pod"),
		ObjectMeta: meta(name),
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{
				{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
				{Name: "conf", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
					LocalObjectReference: v1.LocalObjectReference{Name: "full"}, DefaultMode: new(int32(0o644)),
				}}},
				{
					Name: "key", VolumeSource: v1.VolumeSource{
						Secret: &v1.SecretVolumeSource{SecretName: "full", DefaultMode: new(int32(0o644))},
					},
				},
				{Name: token, VolumeSource: v1.VolumeSource{Projected: tokenVolume()}},
			},
			Containers: []v1.Container{{
				Name:                     "main",
				Image:                    images.Demo,
				ImagePullPolicy:          v1.PullIfNotPresent,
				Command:                  script,
				TerminationMessagePath:   v1.TerminationMessagePathDefault,
				TerminationMessagePolicy: v1.TerminationMessageReadFile,
				VolumeMounts: []v1.VolumeMount{
					{Name: "scratch", MountPath: "/scratch"}, {Name: "conf", MountPath: "/conf"},
					{Name: "key", MountPath: "/key"},
					{Name: token, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
				},
			}},
			RestartPolicy:                 v1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: new(int64(1)),
			DNSPolicy:                     v1.DNSClusterFirst,
			ServiceAccountName:            "default",
			DeprecatedServiceAccount:      "default",
			SchedulerName:                 v1.DefaultSchedulerName,
			SecurityContext:               &v1.PodSecurityContext{},
			Priority:                      new(int32(0)),
			EnableServiceLinks:            new(true),
			PreemptionPolicy:              new(v1.PreemptLowerPriority),
		},
		Status: v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBestEffort},
	}
	for _, taint := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{
			Key:               taint,
			Operator:          v1.TolerationOpExists,
			Effect:            v1.TaintEffectNoExecute,
			TolerationSeconds: new(int64(300)),
		})
	}
	return pod
}

// tokenVolume is the one that an API server adds to pods.
func tokenVolume() *v1.ProjectedVolumeSource {
	return &v1.ProjectedVolumeSource{
		DefaultMode: new(int32(0o644)), Sources: []v1.VolumeProjection{
			{
				ServiceAccountToken: &v1.ServiceAccountTokenProjection{
					ExpirationSeconds: new(int64(3607)), Path: "token",
				},
			},
			{ConfigMap: &v1.ConfigMapProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: rootCA},
				Items:                []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{
				DownwardAPI: &v1.DownwardAPIProjection{
					Items: []v1.DownwardAPIVolumeFile{
						{
							Path: "namespace", FieldRef: &v1.ObjectFieldSelector{
								APIVersion: "v1", FieldPath: "metadata.namespace",
							},
						},
					},
				},
			},
		},
	}
}
