package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// syncFirst is how long the cloud gets to send all that differs before it is told again what is here, which may have
// been lost on the way; each time it gets twice as long, up to syncTimeout.
const syncFirst, syncTimeout = time.Minute, 10 * time.Minute

// errOffline is the answer to requests that only the cloud can carry out, while there is no link.
var errOffline = errors.New("not connected to the cloud")

// Link is edgehub's report on the link: the content of a "connect" message.
type Link struct {
	Connected bool `json:"connected"`
	// Features are what both ends agreed on; none with a cloud of KubeEdge.
	Features wire.Features `json:"features"`
	// Synced: the cloud has sent all that differed from what this edge has. It is metamanager that says so.
	Synced bool `json:"synced,omitempty"`
}

// linkState is the link as it is now.
type linkState struct {
	mu   sync.Mutex
	link Link
	// ended is closed when the link of now is gone; nil while there is none.
	ended chan struct{}
	// before is closed when everything that came before the report of the newest link is stored.
	before <-chan struct{}
}

func (l *linkState) get() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.link
}

// set takes over a report on the link. It returns the end of the new link; nil if there is none.
func (l *linkState) set(link Link) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		close(l.ended)
		l.ended = nil
	}
	l.link = link
	if link.Connected {
		l.ended = make(chan struct{})
	}
	return l.ended
}

// noteLink notes what a message says of a new link before anything that came over that link is worked on.
func (m *Module) noteLink(msg *model.Message) {
	var link Link
	if msg.Route.Operation != wire.OpConnect || json.Unmarshal(msg.ContentData(), &link) != nil || !link.Connected {
		return
	}
	m.ordered.Store(link.Features.Inventory)
	before := m.queues.idle()
	m.link.mu.Lock()
	defer m.link.mu.Unlock()
	m.link.before = before
}

// linkChanged acts on a change of the link: it sends reports, notifies edged, and sends an inventory to a cloudcore of
// this project.
func (m *Module) linkChanged(ctx context.Context, msg *model.Message) error {
	var link Link
	if err := json.Unmarshal(msg.ContentData(), &link); err != nil {
		return fmt.Errorf("state of the link: %w", err)
	}
	ended := m.link.set(link)
	if !link.Connected {
		m.outbox.LinkDown()
		return m.tellEdged(ctx, msg)
	}
	m.tokens.LinkUp(m.opts.Now())
	m.opts.Connected(ctx)
	m.outbox.LinkUp(link.Features)
	if link.Features.Inventory {
		m.background(ctx, func(ctx context.Context) { m.sync(ctx, ended) })
	}
	return m.tellEdged(ctx, msg)
}

// tellEdged reports the link to edged, which may have requests that waited for it. It does nothing while edged is not
// running.
func (m *Module) tellEdged(ctx context.Context, msg *model.Message) error {
	err := m.bus.SendToGroup(ctx, model.GroupEdged, msg)
	if errors.Is(err, beehive.ErrNoGroup) || errors.Is(err, beehive.ErrRemoved) {
		return nil
	}
	return err
}

// sync tells a cloud of ours what this edge has, again until the cloud has answered or the link is gone. It waits for
// what came over the link before this one to be stored: an object that is stored after the list was made is not in it,
// and the cloud would not know that it has to go.
func (m *Module) sync(ctx context.Context, ended <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.background(ctx, func(ctx context.Context) {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	})
	m.link.mu.Lock()
	before := m.link.before
	m.link.mu.Unlock()
	var again []wire.Held
	patience := syncFirst
	for backoff := retry.NewBackoff(outbox.RetryFirst, outbox.RetryMax); ; {
		select {
		case <-before:
		case <-ctx.Done():
			return
		}
		var err error
		again, err = m.tellInventory(ctx, patience)
		patience = min(2*patience, syncTimeout)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		delay := backoff.Next()
		klog.ErrorS(err, "Cloud did not accept the inventory; trying again", "in", delay)
		if !retry.Sleep(ctx, delay) {
			return
		}
		before = m.queues.idle()
	}
	klog.V(1).InfoS("Store agrees with the cloud")
	m.opts.Synced(ctx)
	content, err := json.Marshal(Link{Connected: true, Features: m.link.get().Features, Synced: true})
	if err != nil {
		return
	}
	news := model.New(m.Name(), model.GroupEdged, wire.OpConnect, wire.ResourceLink, content)
	if err := m.tellEdged(ctx, news); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "edged not notified that the store is complete")
	}
	m.reportStatuses(ctx, again)
}
