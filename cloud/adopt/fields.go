package adopt

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// fields are those of a struct of Kubernetes' API that are looked for in a plan.
type fields struct {
	// path names the struct.
	path string
	// object is a pointer to it.
	object any
	// known are the fields that are carried over, or that another part of the plan names.
	known []string
	// defaults are values that say nothing: those of Kubernetes and of KubeEdge's chart.
	defaults map[string][]any
}

// set returns the names of the other fields that are set.
func (f fields) set() ([]string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(f.object)
	if err != nil {
		return nil, err
	}
	var out []string
	for key, value := range content {
		if m, ok := value.(map[string]any); ok && len(m) == 0 || value == nil || slices.Contains(f.known, key) ||
			slices.ContainsFunc(f.defaults[key], func(v any) bool { return equalJSON(v, value) }) {
			continue
		}
		out = append(out, f.path+key)
	}
	return out, nil
}

// decideFields names what is set in KubeEdge's Deployment and ServiceAccount and is not carried over.
func (p *Plan) decideFields() error {
	d := p.Found.Deployment
	pod := &d.Spec.Template.Spec
	list := []fields{{
		"spec.", &d.Spec, []string{"replicas", "selector", "template"}, map[string][]any{
			"progressDeadlineSeconds": {600}, "revisionHistoryLimit": {10},
			"strategy": {map[string]any{
				"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": "25%", "maxUnavailable": "25%"},
			}},
		},
	}, {
		"spec.template.spec.", pod, []string{
			"affinity", "containers", "hostNetwork", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector",
			"priorityClassName", "tolerations", "volumes",
		}, map[string][]any{
			"restartPolicy": {"Always"}, "terminationGracePeriodSeconds": {30}, "enableServiceLinks": {true},
			"dnsPolicy": {"ClusterFirst", "ClusterFirstWithHostNet"}, "schedulerName": {"default-scheduler"},
			"serviceAccount": {name}, "serviceAccountName": {name},
		},
	}}
	if pod.Affinity != nil {
		list = append(list, fields{"spec.template.spec.affinity.", pod.Affinity, []string{"nodeAffinity"}, nil})
	}
	for i := range pod.Containers {
		if c := &pod.Containers[i]; c.Name == name {
			list = append(list, fields{"container " + name + ": ", c, []string{
				"args", "env", "image", "imagePullPolicy", "name", "ports", "volumeMounts",
			}, map[string][]any{
				"securityContext":          {map[string]any{"privileged": true}},
				"terminationMessagePath":   {"/dev/termination-log"},
				"terminationMessagePolicy": {"File"},
			}})
		}
	}
	var lost []string
	for _, f := range list {
		names, err := f.set()
		if err != nil {
			return err
		}
		lost = append(lost, names...)
	}
	for _, c := range pod.InitContainers {
		lost = append(lost, "init container "+c.Name)
	}
	for _, v := range pod.Volumes {
		if !slices.Contains([]string{"conf", "certs", "sock", "host-time"}, v.Name) { // those of the chart
			lost = append(lost, "volume "+v.Name)
		}
	}
	lost = append(lost, others("annotation ", d.Annotations)...)
	lost = append(lost, others("annotation of pods ", d.Spec.Template.Annotations)...)
	if len(p.Found.Selecting) == 0 {
		lost = append(lost, others("label of pods ", d.Spec.Template.Labels)...)
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		p.addNote("deployment/%s: left out, or as in edgecore's manifests: %s", name, strings.Join(lost, ", "))
	}
	if s := p.Found.ServiceAccount; s != nil {
		if lost := others("annotation ", s.Annotations); len(lost) > 0 {
			slices.Sort(lost)
			p.addNote("serviceaccount/%s: left out: %s", name, strings.Join(lost, ", "))
		}
	}
	return nil
}

// others returns the keys of labels or annotations, but for those of KubeEdge's chart, of Helm, and of Kubernetes.
func others(what string, from map[string]string) []string {
	var out []string
	for key := range from {
		if key == "k8s-app" || key == "kubeedge" || key == "deployment.kubernetes.io/revision" ||
			key == v1.LastAppliedConfigAnnotation || strings.HasPrefix(key, "meta.helm.sh/") {
			continue
		}
		out = append(out, what+key)
	}
	return out
}
