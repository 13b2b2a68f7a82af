// Package adopted is the record of pods that were taken over from KubeEdge's agent, which package local/adopt makes.
//
// What has to be remembered are two things. The hash by which a container's spec is distinguished from a changed one
// was made of the whole spec before Kubernetes 1.31, and is made of name and image today: the Record says, for each
// container that was taken over, which hash of today stands for the one that it carries. A change of the image after
// that is a change. And the UID of a static pod was a hash of Kubernetes' own types, which no other program can make
// again: the Record says which UID a manifest had, as long as the manifest says the same.
package adopted

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Key is where the store keeps the Record, as a note of the agent about itself.
const Key = "adopted"

// Version is the version of the format in which a Record is stored.
const Version = 1

// Record is what the agent remembers of a takeover. The zero value, and nil, know of none.
type Record struct {
	Version int `json:"version"`
	// At is when it was.
	At time.Time `json:"at"`
	// Containers are those that were taken over, by their ids in the runtime.
	Containers map[string]Container `json:"containers,omitempty"`
	// Static has the UIDs of static pods: the one that was given to a manifest, by the one that this agent makes of it.
	Static map[types.UID]types.UID `json:"static,omitempty"`
}

// Container is one that was taken over.
type Container struct {
	// Carries is the hash in its annotation, Means the one of today that stands for it; both in hex.
	Carries string `json:"carries"`
	Means   string `json:"means"`
}

// Parse reads what Text wrote.
func Parse(text string) (*Record, error) {
	r := &Record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("record of the migration: %w", err)
	}
	if r.Version != Version {
		return nil, fmt.Errorf("record of the migration: it has version %d, and this edgecore knows %d", r.Version,
			Version)
	}
	for id, c := range r.Containers {
		if _, err := parseHash(c.Carries); err != nil {
			return nil, fmt.Errorf("record of the migration: container %s: %w", id, err)
		}
		if _, err := parseHash(c.Means); err != nil {
			return nil, fmt.Errorf("record of the migration: container %s: %w", id, err)
		}
	}
	return r, nil
}

// Notes are what the agent has written down about itself; see package store.
type Notes interface {
	AgentValue(ctx context.Context, key string) (string, error)
}

// FromStore returns what the agent remembers of a takeover; nil if there is no note of one, and with an error if the
// note cannot be used.
func FromStore(ctx context.Context, notes Notes) (*Record, error) {
	text, err := notes.AgentValue(ctx, Key)
	if err != nil {
		return nil, nil // there is no such note
	}
	return Parse(text)
}

// Text is the form for the store.
func (r *Record) Text() (string, error) {
	data, err := json.Marshal(r)
	return string(data), err
}

// Hash returns the hash by which a container is to be judged, given its id and the one in its annotation.
func (r *Record) Hash(id string, carries uint64) uint64 {
	if r == nil {
		return carries
	}
	c, ok := r.Containers[id]
	if !ok || c.Carries != FormatHash(carries) {
		return carries
	}
	means, err := parseHash(c.Means)
	if err != nil {
		return carries // Parse lets none through
	}
	return means
}

// StaticPods gives pods of manifests the UIDs that they had. The pods are changed in place: they are new and not shared
// yet. annotation is the one in which a static pod carries its UID.
func (r *Record) StaticPods(pods []*v1.Pod, annotation string) {
	if r == nil {
		return
	}
	for _, pod := range pods {
		if uid, ok := r.Static[pod.UID]; ok {
			pod.UID = uid
			pod.Annotations[annotation] = string(uid)
		}
	}
}

// FormatHash is the form that a hash has in a Record.
func FormatHash(h uint64) string { return strconv.FormatUint(h, 16) }

func parseHash(text string) (uint64, error) { return strconv.ParseUint(text, 16, 64) }
