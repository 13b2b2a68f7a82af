package adopt

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
)

// nodesAnnotation of a Namespace says which nodes its Devices may name: patterns with commas between them.
const nodesAnnotation = "edgecore.io/device-nodes"

// DeviceNodes are the nodes that Devices of a namespace name without being allowed to.
type DeviceNodes struct {
	Namespace string
	// Allowed is the value of nodesAnnotation.
	Allowed string
	Nodes   []string
}

// Binding is one that has to do with a role of the name cloudcore.
type Binding struct {
	Ref      Ref
	Role     rbacv1.RoleRef
	Subjects []rbacv1.Subject
}

// readRights reads who has rights that edgecore's roles and policies change.
func (a *Adoption) readRights(ctx context.Context, j *journal, f *Found) error {
	const rbac = "rbac.authorization.k8s.io/v1"
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		list, err := a.api.list(ctx, Ref{rbac, kind, "", ""}, "")
		if err != nil {
			return err
		}
		for i := range list {
			o := &list[i]
			if isOurs(o) {
				if o, err = a.original(ctx, j, refOf(o)); err != nil {
					return err
				}
			}
			if o == nil {
				continue
			}
			b, err := as(o, &rbacv1.RoleBinding{})
			if err != nil {
				return fmt.Errorf("%s: %w", refOf(o), err)
			}
			f.Bindings = append(f.Bindings, Binding{refOf(o), b.RoleRef, b.Subjects})
		}
	}
	devices, err := a.api.list(ctx, Ref{"devices.kubeedge.io/v1beta1", "Device", "", ""}, "")
	if err != nil && !meta.IsNoMatchError(err) {
		return err
	}
	namespaces, err := a.api.list(ctx, Ref{"v1", "Namespace", "", ""}, "")
	f.Devices = disallowed(devices, namespaces)
	return err
}

// disallowed returns what the policy device-tenants refuses of Devices, by namespace.
func disallowed(devices, namespaces []unstructured.Unstructured) []DeviceNodes {
	nodes := map[string][]string{}
	for i := range devices {
		node, _, _ := unstructured.NestedString(devices[i].Object, "spec", "nodeName")
		if in := devices[i].GetNamespace(); node != "" {
			nodes[in] = append(nodes[in], node)
		}
	}
	var out []DeviceNodes
	for i := range namespaces {
		d := DeviceNodes{namespaces[i].GetName(), namespaces[i].GetAnnotations()[nodesAnnotation], nil}
		d.Nodes = slices.DeleteFunc(nodes[d.Namespace], func(node string) bool { return allows(d.Allowed, node) })
		slices.Sort(d.Nodes)
		if d.Nodes = slices.Compact(d.Nodes); len(d.Nodes) > 0 {
			out = append(out, d)
		}
	}
	return out
}

// allows reports whether a value of nodesAnnotation allows a node, as the policy device-tenants decides it.
func allows(value, node string) bool {
	for pattern := range strings.SplitSeq(value, ",") {
		pattern = strings.TrimSpace(pattern)
		if pattern == "*" {
			return true
		}
		expression := strings.NewReplacer(".", "[.]", "*", "[0-9A-Za-z_-]*").Replace(pattern)
		if re, err := regexp.Compile("^" + expression + "$"); pattern != "" && err == nil && re.MatchString(node) {
			return true
		}
	}
	return false
}

// maxNamed bounds how many names of a kind a plan prints.
const maxNamed = 20

// named joins up to maxNamed names, and counts the others.
func named(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// decideRights names those whose rights change.
func (p *Plan) decideRights() {
	p.note("anyone with the ClusterRole view, edit or admin may read Devices, DeviceModels and DeviceStatuses: " +
		"clusterrole/edgecore-devices-viewer is a part of view")
	for _, b := range p.Found.Bindings {
		p.decideBinding(b)
	}
	for i, d := range p.Found.Devices {
		if i == maxNamed {
			p.warn("so do Devices of %d more namespaces", len(p.Found.Devices)-maxNamed)
			break
		}
		values := strings.Fields(strings.ReplaceAll(d.Allowed, ",", " "))
		for _, node := range d.Nodes {
			if len(validation.IsDNS1123Subdomain(node)) == 0 {
				values = append(values, node)
			}
		}
		command := ""
		if !strings.ContainsAny(d.Allowed, "'\n") {
			command = fmt.Sprintf(". To allow them: kubectl annotate namespace %s --overwrite %s='%s'", d.Namespace,
				nodesAnnotation, strings.Join(values, ","))
		}
		p.warn("Devices in the namespace %s name nodes that the annotation %s of the Namespace does not allow (%s): "+
			"the policy device-tenants lets only those with the verb bind for devices, such as cluster admins, create "+
			"such Devices or change their node, protocol or pushMethod. Addresses need edgecore.io/device-addresses, "+
			"too (docs/cloud.md)%s", d.Namespace, nodesAnnotation, named(d.Nodes), command)
	}
}

func (p *Plan) decideBinding(b Binding) {
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: Namespace}
	var others []string
	for _, s := range b.Subjects {
		if s.Kind == account.Kind && s.Name == account.Name && s.Namespace == account.Namespace {
			continue
		}
		who := s.Kind + " " + s.Name
		if s.Namespace != "" {
			who = s.Kind + " " + s.Namespace + "/" + s.Name
		}
		others = append(others, who)
	}
	if len(others) == 0 {
		return
	}
	in := b.Ref.String()
	if b.Ref.Namespace != "" {
		in += " in the namespace " + b.Ref.Namespace
	}
	replaced := b.Ref.Name == name && (b.Ref.Namespace == "" || b.Ref.Namespace == Namespace)
	role := b.Role.Name == name && (b.Role.Kind == "ClusterRole" || b.Ref.Namespace == Namespace)
	switch {
	case replaced:
		p.warn("%s is replaced by one for edgecore's ServiceAccount alone: %s no longer have what it gave them", in,
			named(others))
	case role:
		p.warn("%s gives %s the %s %s, whose rules become those of edgecore's cloudcore", in, named(others),
			b.Role.Kind, name)
	}
}

// decideUnknownPolicies warns where the API server does not know what bounds cloudcore's rights.
func (p *Plan) decideUnknownPolicies() {
	var names []string
	for _, s := range p.Steps {
		if s.Verb == skip && s.Kind == "ValidatingAdmissionPolicy" {
			names = append(names, s.Name)
		}
	}
	if len(names) > 0 {
		p.warn("this Kubernetes does not know ValidatingAdmissionPolicies, which are left out: cloudcore's role alone "+
			"bounds what it may write, and nothing checks Devices. Kubernetes 1.30 or newer has them: %s",
			strings.Join(names, ", "))
	}
}
