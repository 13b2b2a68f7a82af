// Package storetest is for tests of those who use a store. It owns stores that fail: one whose every call does,
// and one that does when told to.
package storetest

import (
	"context"
	"sync"

	"github.com/edgecore-io/edgecore/metamanager/store"
)

// Interface is what a *store.Store offers. Who uses a store declares the part that it needs.
type Interface interface {
	Get(ctx context.Context, key string) (store.Meta, error)
	List(ctx context.Context, typ string) ([]store.Meta, error)
	Each(ctx context.Context, typ string, do func(store.Meta) error) error
	Outbox(ctx context.Context) ([]store.Report, error)
	AgentValue(ctx context.Context, key string) (string, error)
	Apply(ctx context.Context, ops ...store.Op) error
	Close() error
}

var (
	_ Interface = (*store.Store)(nil)
	_ Interface = ErrStore{}
	_ Interface = (*Flaky)(nil)
)

// ErrStore is a store whose every call fails with Err.
type ErrStore struct{ Err error }

func (e ErrStore) Get(context.Context, string) (store.Meta, error)            { return store.Meta{}, e.Err }
func (e ErrStore) List(context.Context, string) ([]store.Meta, error)         { return nil, e.Err }
func (e ErrStore) Each(context.Context, string, func(store.Meta) error) error { return e.Err }
func (e ErrStore) Outbox(context.Context) ([]store.Report, error)             { return nil, e.Err }
func (e ErrStore) AgentValue(context.Context, string) (string, error)         { return "", e.Err }
func (e ErrStore) Apply(context.Context, ...store.Op) error                   { return e.Err }
func (e ErrStore) Close() error                                               { return e.Err }

// Flaky passes calls on to a store, except while Fail is set.
type Flaky struct {
	Store Interface

	mu          sync.Mutex
	read, write error
}

// Fail makes reads, and Applies, fail with these errors from now on; nil lets them through.
func (f *Flaky) Fail(read, write error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read, f.write = read, write
}

func (f *Flaky) errs() (read, write error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read, f.write
}

func (f *Flaky) Get(ctx context.Context, key string) (store.Meta, error) {
	if err, _ := f.errs(); err != nil {
		return store.Meta{}, err
	}
	return f.Store.Get(ctx, key)
}

func (f *Flaky) List(ctx context.Context, typ string) ([]store.Meta, error) {
	if err, _ := f.errs(); err != nil {
		return nil, err
	}
	return f.Store.List(ctx, typ)
}

func (f *Flaky) Each(ctx context.Context, typ string, do func(store.Meta) error) error {
	if err, _ := f.errs(); err != nil {
		return err
	}
	return f.Store.Each(ctx, typ, do)
}

func (f *Flaky) Outbox(ctx context.Context) ([]store.Report, error) {
	if err, _ := f.errs(); err != nil {
		return nil, err
	}
	return f.Store.Outbox(ctx)
}

func (f *Flaky) AgentValue(ctx context.Context, key string) (string, error) {
	if err, _ := f.errs(); err != nil {
		return "", err
	}
	return f.Store.AgentValue(ctx, key)
}

func (f *Flaky) Apply(ctx context.Context, ops ...store.Op) error {
	if _, err := f.errs(); err != nil {
		return err
	}
	return f.Store.Apply(ctx, ops...)
}

// Close closes the store, also while calls fail.
func (f *Flaky) Close() error { return f.Store.Close() }
