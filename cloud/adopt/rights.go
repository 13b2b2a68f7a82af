package adopt

import (
	"context"
	"encoding/json"
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

// rbacAPI is the API of roles and their bindings.
const rbacAPI = "rbac.authorization.k8s.io/v1"

// bindings returns all ClusterRoleBindings and RoleBindings.
func (a *Adoption) bindings(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		list, err := a.api.list(ctx, Ref{rbacAPI, kind, "", ""}, "")
		if err != nil {
			return nil, err
		}
		for i := range list {
			out = append(out, &list[i])
		}
	}
	return out, nil
}

func bindingOf(o *unstructured.Unstructured) (Binding, error) {
	b, err := as(o, &rbacv1.RoleBinding{})
	if err != nil {
		return Binding{}, fmt.Errorf("%s: %w", refOf(o), err)
	}
	return Binding{refOf(o), b.RoleRef, b.Subjects}, nil
}

// readRights reads who has rights that edgecore's roles and policies change.
func (a *Adoption) readRights(ctx context.Context, j *journal, f *Found) error {
	bindings, err := a.bindings(ctx)
	if err != nil {
		return err
	}
	for _, o := range bindings {
		if isOurs(o) {
			if o, err = a.original(ctx, j, refOf(o)); err != nil {
				return err
			}
		}
		if o == nil {
			continue
		}
		b, err := bindingOf(o)
		if err != nil {
			return err
		}
		f.Bindings = append(f.Bindings, b)
	}
	f.Roles = map[string]map[string]any{}
	for _, ref := range []Ref{{rbacAPI, "ClusterRole", "", name}, {rbacAPI, "Role", Namespace, name}} {
		o, err := a.original(ctx, j, ref)
		if err != nil {
			return err
		}
		if o != nil {
			f.Roles[ref.Kind] = o.Object
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
	p.addNote("anyone with the ClusterRole view, edit or admin may read Devices, DeviceModels and DeviceStatuses: " +
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
	lost := b.lostSubjects(nil)
	if len(lost) == 0 {
		return
	}
	replaced := b.Ref.Name == name && (b.Ref.Namespace == "" || b.Ref.Namespace == Namespace)
	role := b.Role.Name == name && (b.Role.Kind == "ClusterRole" || b.Ref.Namespace == Namespace)
	var rules map[string]any
	if role {
		if rules = p.Found.Roles[b.Role.Kind]; rules == nil {
			return // it gives nothing
		}
	}
	keep := b.keepCommand(lost, rules, "-kubeedge")
	switch {
	case replaced:
		p.warn("%s is replaced by one for edgecore's ServiceAccount alone, and no longer gives rights to %s. %s",
			b, subjectNames(lost), keep)
	case role:
		p.warn("%s gives %s the %s %s, whose rules become those of edgecore's cloudcore. %s", b, subjectNames(lost),
			b.Role.Kind, name, keep)
	}
}

// String names the binding.
func (b Binding) String() string {
	if b.Ref.Namespace != "" {
		return b.Ref.String() + " in the namespace " + b.Ref.Namespace
	}
	return b.Ref.String()
}

// lostSubjects returns the subjects besides cloudcore's ServiceAccount that are not among those that the binding will
// have.
func (b Binding) lostSubjects(next []rbacv1.Subject) []rbacv1.Subject {
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: Namespace}
	return slices.DeleteFunc(slices.Clone(b.Subjects), func(s rbacv1.Subject) bool {
		return s.Kind == account.Kind && s.Name == account.Name && s.Namespace == account.Namespace ||
			slices.Contains(next, s)
	})
}

// subjectNames names subjects.
func subjectNames(subjects []rbacv1.Subject) string {
	var names []string
	for _, s := range subjects {
		who := s.Kind + " " + s.Name
		if s.Namespace != "" {
			who = s.Kind + " " + s.Namespace + "/" + s.Name
		}
		names = append(names, who)
	}
	return named(names)
}

// keepCommand returns a text with the command that gives subjects what the binding gives them: by a binding of their
// own and, if role is not nil, a copy of the binding's role, whose rules are about to change. suffix makes the names of
// both.
func (b Binding) keepCommand(subjects []rbacv1.Subject, role map[string]any, suffix string) string {
	metadata := func(name string) map[string]any {
		m := map[string]any{"name": name}
		if b.Ref.Namespace != "" {
			m["namespace"] = b.Ref.Namespace
		}
		return m
	}
	ref := b.Role
	var items []any
	also := ""
	if role != nil {
		ref.Name += suffix
		object := map[string]any{"apiVersion": rbacAPI, "kind": ref.Kind, "metadata": map[string]any{"name": ref.Name}}
		if ref.Kind == "Role" {
			object["metadata"] = metadata(ref.Name)
		}
		if object["rules"] = role["rules"]; role["aggregationRule"] != nil {
			object["aggregationRule"], object["rules"] = role["aggregationRule"], []any{}
			also = ", as long as the ClusterRoles that it aggregates stay"
		}
		items = append(items, object)
	}
	items = append(items, map[string]any{
		"apiVersion": rbacAPI, "kind": b.Ref.Kind, "metadata": metadata(b.Ref.Name + suffix), "roleRef": ref,
		"subjects": subjects,
	})
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return "" // these are texts only
	}
	return fmt.Sprintf("This command keeps their rights%s: printf %%s '%s' | kubectl apply -f -", also,
		strings.ReplaceAll(string(data), "'", `'\''`))
}

// warnUndoneRights names whose rights an undo changes.
func (a *Adoption) warnUndoneRights(ctx context.Context, j *journal) error {
	bindings, err := a.bindings(ctx)
	if err != nil {
		return err
	}
	for _, o := range bindings {
		b, err := bindingOf(o)
		if err != nil {
			return err
		}
		var next []rbacv1.Subject
		saved := j.original(b.Ref)
		if saved != nil {
			was, err := bindingOf(saved)
			if err != nil {
				return err
			}
			next = was.Subjects
		}
		role, what := b.role(), ""
		switch {
		case saved != nil:
			what = "is replaced by KubeEdge's, and no longer gives rights to %s. %s"
		case slices.Contains(j.Created, b.Ref):
			what = "is deleted, and no longer gives rights to %s. %s"
		case slices.Contains(j.Created, role):
			what = "gives %s " + role.String() + ", which is deleted. %s"
		case j.original(role) != nil && !slices.Contains(keptRefs(), role):
			what = "gives %s " + role.String() + ", whose rules become KubeEdge's again. %s"
		}
		lost := b.lostSubjects(next)
		if what == "" || len(lost) == 0 {
			continue
		}
		changes := slices.Contains(j.Created, role) || j.original(role) != nil
		if err := a.warnLost(ctx, b, lost, what, changes, "-edgecore"); err != nil {
			return err
		}
	}
	return nil
}

// warnRewritten names whose rights change when a step writes a binding again.
func (a *Adoption) warnRewritten(ctx context.Context, s Step) error {
	if s.Kind != "ClusterRoleBinding" && s.Kind != "RoleBinding" {
		return nil
	}
	now, err := a.api.get(ctx, s.Ref)
	if err != nil || now == nil {
		return err
	}
	b, err := bindingOf(now)
	if err != nil {
		return err
	}
	next, err := bindingOf(s.Object)
	if err != nil {
		return err
	}
	lost := b.lostSubjects(next.Subjects)
	if len(lost) == 0 {
		return nil
	}
	return a.warnLost(ctx, b, lost, "is written again, and no longer gives rights to %s. %s", true, "-kept")
}

// role returns the role of a binding.
func (b Binding) role() Ref {
	role := Ref{b.Ref.APIVersion, b.Role.Kind, "", b.Role.Name}
	if role.Kind == "Role" {
		role.Namespace = b.Ref.Namespace
	}
	return role
}

// warnLost warns that subjects of a binding lose what it gives them. what is about the subjects and the command that
// keeps their rights. changes says that the role changes, too.
func (a *Adoption) warnLost(ctx context.Context, b Binding, lost []rbacv1.Subject, what string, changes bool,
	suffix string) error {
	var rules map[string]any
	if changes {
		now, err := a.api.get(ctx, b.role())
		if err != nil || now == nil {
			return err // without a role, it gives nothing
		}
		rules = now.Object
	}
	text := fmt.Sprintf("%s "+what, b, subjectNames(lost), b.keepCommand(lost, rules, suffix))
	a.printLine("warning: %s", printable(text))
	return nil
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
