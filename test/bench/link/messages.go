package main

import (
	"context"
	"time"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

// settledFor is how long no message must have come or gone for a burst to be over: events wait for up to 5 s while pods
// start and end.
const settledFor = 6 * time.Second

// messages returns how many messages the node has sent and received.
func (e *edgeSite) messages(ctx context.Context) (sent, received int, err error) {
	text, err := e.edge.Get(ctx, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	for direction, n := range map[string]*int{"sent": &sent, "received": &received} {
		value, err := metric(text, `edgecore_link_messages_total{direction="`+direction+`"}`)
		if err != nil {
			return 0, 0, err
		}
		*n = int(value)
	}
	return sent, received, nil
}

// settledMessages is messages when none has come or gone for settledFor.
func (e *edgeSite) settledMessages(ctx context.Context) (sent, received int, err error) {
	for since := time.Now(); ; {
		out, in, err := e.messages(ctx)
		if err != nil || out == sent && in == received && time.Since(since) >= settledFor {
			return out, in, err
		}
		if out != sent || in != received {
			sent, received, since = out, in, time.Now()
		}
		if !retry.Sleep(ctx, time.Second) {
			return 0, 0, ctx.Err()
		}
	}
}
