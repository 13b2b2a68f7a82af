package cgroups

import (
	"context"
	"errors"
	"time"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Run creates the cgroups of the QoS classes. It tries again while that fails, and returns once they exist or ctx ends.
func (m *Manager) Run(ctx context.Context, h *health.Registry) error {
	retry.Until(ctx, time.Second, time.Minute, func(ctx context.Context) error {
		err := m.Setup(ctx)
		if missing, ok := errors.AsType[*MissingError](err); ok {
			h.Set(health.CgroupsIncomplete, "", missing.Error())
			err = nil
		}
		h.SetError(health.CgroupsFailing, "", err)
		return err
	}, nil)
	return nil
}
