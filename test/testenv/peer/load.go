package peer

import (
	"fmt"
	"math/rand/v2"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Settings is the configmap that every pod of a Load mounts; its one key is Value.
const (
	Settings = "settings"
	Value    = "value"
)

const (
	namespace = "default"
	// Of each kind so many are there at most; then the oldest change, or go.
	maxConfigs, maxSecrets, maxJobs = 12, 4, 3
)

// forEver is a container that ends when it is told to.
const forEver = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

// Load makes work for the edge, the same for the same seed: pods that run for ever, pods that end, configmaps and
// secrets come, change and go.
type Load struct {
	// Images are those of the pods; each pod takes one of them.
	Images []string
	// Pods is how many run at a time.
	Pods int

	cloud *Cloud
	rand  *rand.Rand
	made  int
}

// NewLoad makes work for the edge of a cloud.
func NewLoad(cloud *Cloud, seed uint64, pods int, images ...string) *Load {
	return &Load{Images: images, Pods: pods, cloud: cloud, rand: rand.New(rand.NewPCG(seed, 1))}
}

// Start makes what the pods need, and as many as run at a time.
func (l *Load) Start() error {
	if err := l.configMap(Settings); err != nil {
		return err
	}
	for range l.Pods {
		if err := l.pod(); err != nil {
			return err
		}
	}
	return nil
}

// Step does one thing.
func (l *Load) Step() error {
	switch n := l.rand.IntN(100); {
	case n < 10:
		return l.configMap(Settings)
	case n < 64:
		return l.some(resource.TypeConfigMap, maxConfigs, "conf", l.configMap)
	case n < 84:
		return l.some(resource.TypeSecret, maxSecrets, "key", l.secret)
	case n < 92:
		return l.job()
	default:
		return l.replacePod()
	}
}

// some makes another object, or changes or deletes one when there are enough.
func (l *Load) some(typ string, enough int, prefix string, put func(name string) error) error {
	live := l.named(typ, prefix)
	if len(live) < enough {
		l.made++
		return put(fmt.Sprintf("%s-%d", prefix, l.made))
	}
	one := live[l.rand.IntN(len(live))]
	if l.rand.IntN(3) == 0 {
		return l.cloud.Delete(one)
	}
	return put(one[strings.LastIndexByte(one, '/')+1:])
}

// named are the live objects whose names begin like that.
func (l *Load) named(typ, prefix string) []string {
	var names []string
	for _, name := range l.cloud.Journal().Live(typ) {
		if strings.HasPrefix(name, namespace+"/"+typ+"/"+prefix+"-") {
			names = append(names, name)
		}
	}
	return names
}

func (l *Load) configMap(name string) error {
	_, err := l.cloud.Put(&v1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta(name),
		Data: map[string]string{Value: l.text()},
	})
	return err
}

func (l *Load) secret(name string) error {
	_, err := l.cloud.Put(&v1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta(name),
		Type:       v1.SecretTypeOpaque,
		Data:       map[string][]byte{Value: []byte(l.text())},
	})
	return err
}

// text is 16 bytes to 16 KB of letters.
func (l *Load) text() string {
	return strings.Repeat(fmt.Sprintf("%016x", l.rand.Uint64()), 1<<l.rand.IntN(11))
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }

// job makes a pod that ends by itself, or deletes one that has ended.
func (l *Load) job() error {
	journal := l.cloud.Journal()
	live := l.named(resource.TypePod, "job")
	if len(live) < maxJobs {
		l.made++
		_, err := l.cloud.Put(l.podOf(fmt.Sprintf("job-%d", l.made), v1.RestartPolicyNever, "sleep 1"))
		return err
	}
	for _, name := range live {
		if journal[name].Finished {
			return l.cloud.Delete(name)
		}
	}
	return l.configMap(Settings)
}

// pod makes a pod that runs until it is deleted.
func (l *Load) pod() error {
	l.made++
	_, err := l.cloud.Put(l.podOf(fmt.Sprintf("web-%d", l.made), v1.RestartPolicyAlways, forEver))
	return err
}

// Pod makes a pod of that name and image, which stays until it is deleted by its name.
func (l *Load) Pod(name, image string) error {
	pod := l.podOf(name, v1.RestartPolicyAlways, forEver)
	pod.Spec.Containers[0].Image = image
	_, err := l.cloud.Put(pod)
	return err
}

// replacePod makes a pod; when there are enough, one of them goes before.
func (l *Load) replacePod() error {
	if live := l.named(resource.TypePod, "web"); len(live) >= l.Pods {
		if err := l.cloud.Delete(live[l.rand.IntN(len(live))]); err != nil {
			return err
		}
	}
	return l.pod()
}

func (l *Load) podOf(name string, policy v1.RestartPolicy, script string) *v1.Pod {
	grace, no := int64(1), false
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta(name), Spec: v1.PodSpec{
			RestartPolicy:                 policy,
			TerminationGracePeriodSeconds: &grace,
			DNSPolicy:                     v1.DNSDefault,
			AutomountServiceAccountToken:  &no,
			Containers: []v1.Container{{
				Name:            "main",
				Image:           l.Images[l.rand.IntN(len(l.Images))],
				ImagePullPolicy: v1.PullIfNotPresent,
				Command:         []string{"sh", "-c", script},
				VolumeMounts:    []v1.VolumeMount{{Name: Settings, MountPath: "/etc/settings"}},
			}},
			Volumes: []v1.Volume{
				{
					Name: Settings, VolumeSource: v1.VolumeSource{
						ConfigMap: &v1.ConfigMapVolumeSource{
							LocalObjectReference: v1.LocalObjectReference{Name: Settings},
						},
					},
				},
			},
		},
	}
}
