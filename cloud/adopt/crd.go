package adopt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const crdKind = "CustomResourceDefinition"

// crd is what a CustomResourceDefinition says of its versions.
type crd struct {
	// versions are all of them, and served are those that clients may use.
	versions, served []string
	// storage is the version in which objects are written, and stored are those in which some may be stored.
	storage string
	stored  []string
	// group, kind and plural name its objects.
	group, kind, plural string
}

// crdOf reads a CRD. Without a status, objects may be stored in all versions.
func crdOf(o *unstructured.Unstructured) crd {
	var c crd
	c.group, _, _ = unstructured.NestedString(o.Object, "spec", "group")
	c.kind, _, _ = unstructured.NestedString(o.Object, "spec", "names", "kind")
	c.plural, _, _ = unstructured.NestedString(o.Object, "spec", "names", "plural")
	list, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	for _, entry := range list {
		v, _ := entry.(map[string]any)
		version, _ := v["name"].(string)
		c.versions = append(c.versions, version)
		if v["served"] == true {
			c.served = append(c.served, version)
		}
		if v["storage"] == true {
			c.storage = version
		}
	}
	if c.stored, _, _ = unstructured.NestedStringSlice(o.Object, "status", "storedVersions"); len(c.stored) == 0 {
		c.stored = c.versions
	}
	return c
}

// lacks returns which of the versions the CRD does not have.
func (c *crd) lacks(versions []string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return slices.Contains(c.versions, v) })
}

// refuseStored refuses to replace a CRD by another one that cannot read objects as they may be stored. edgecore's CRDs
// name older versions without converting them: what only an older version has is lost at the first write. exist
// reports whether there are objects.
func (p *Plan) refuseStored(next, now *unstructured.Unstructured, exist bool) {
	old, ours := crdOf(now), crdOf(next)
	if lost := ours.lacks(old.stored); len(lost) > 0 {
		p.refuse("if there are no such objects: kubectl delete crd "+next.GetName()+". Otherwise migrate them with "+
			"KubeEdge 1.15 or newer first",
			"objects of %s may be stored as %s, which edgecore's CRD does not have", next.GetName(),
			strings.Join(lost, ", "))
		return
	}
	others := slices.DeleteFunc(slices.Clone(old.stored), func(v string) bool { return v == ours.storage })
	if !exist || len(others) == 0 {
		return
	}
	p.refuse(fmt.Sprintf("write them again as %s with KubeEdge 1.15 or newer first. When all of them are: "+
		`kubectl patch crd %s --subresource=status --type=merge -p '{"status":{"storedVersions":[%q]}}'`,
		ours.storage, next.GetName(), ours.storage),
		"objects of %s may be stored as %s: edgecore's cloudcore reads and writes %s, and would lose what only the "+
			"other has, such as a Device's protocol and visitors", next.GetName(), strings.Join(others, ", "),
		ours.storage)
}

// checkStored does so for the CRD of a step, unless it is edgecore's already.
func (a *Adoption) checkStored(ctx context.Context, p *Plan, next *unstructured.Unstructured) error {
	now, err := a.api.get(ctx, refOf(next))
	if err != nil || now == nil {
		return err
	}
	old := crdOf(now)
	if ours := crdOf(next); isOurs(now) && old.storage == ours.storage {
		return nil
	}
	exist := false
	if len(old.served) > 0 {
		some, err := a.api.objectsOf(ctx, &old, old.served[0])
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		exist = some.first != ""
	}
	p.refuseStored(next, now, exist)
	return nil
}

// leftCRD returns the versions in which objects may be stored and that the saved CRD lacks: the API server would refuse
// to restore it.
func leftCRD(now, saved *unstructured.Unstructured) (lacking []string) {
	if now == nil || saved.GetKind() != crdKind {
		return nil
	}
	was := crdOf(saved)
	return was.lacks(crdOf(now).stored)
}

// some are objects of a CRD.
type some struct {
	// first is the name of one; "" if there are none.
	first string
	// more is how many there are besides it.
	more int64
}

func (s some) String() string {
	if s.more > 0 {
		return fmt.Sprintf("%s and %d more", s.first, s.more)
	}
	return s.first
}

// objectsOf returns the objects of a CRD that the API server serves in a version. The error is NotFound where it does
// not serve that version.
func (a *api) objectsOf(ctx context.Context, c *crd, version string) (some, error) {
	resource := schema.GroupVersionResource{Group: c.group, Version: version, Resource: c.plural}
	page, err := a.objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return some{}, fmt.Errorf("list %s of %s: %w", c.plural, version, err)
	}
	if len(page.Items) == 0 {
		return some{}, nil
	}
	o, out := &page.Items[0], some{}
	if out.first = o.GetName(); o.GetNamespace() != "" {
		out.first = o.GetNamespace() + "/" + o.GetName()
	}
	if left := page.GetRemainingItemCount(); left != nil {
		out.more = *left
	}
	return out, nil
}
