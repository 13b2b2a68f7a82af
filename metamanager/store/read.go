package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Get returns a row, or ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) (Meta, error) {
	m := Meta{Key: key}
	err := s.stmts[sqlGet].QueryRowContext(ctx, key).Scan(&m.Value, &m.Type)
	if errors.Is(err, sql.ErrNoRows) {
		return Meta{}, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	if err != nil {
		return Meta{}, fmt.Errorf("read %s: %w", key, s.classify(err))
	}
	return m, nil
}

// List returns all rows of a type, by key.
func (s *Store) List(ctx context.Context, typ string) ([]Meta, error) {
	var list []Meta
	err := s.Each(ctx, typ, func(m Meta) error {
		list = append(list, m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Each hands the rows of a type to a function, by key, without holding all of them in memory. They are of
// one moment: writes meanwhile wait for nothing, and do not show. An error of the function ends it, and is
// returned as it is. The function may keep what it gets, and may call the store (but each nested read takes one
// of two connections).
func (s *Store) Each(ctx context.Context, typ string, do func(Meta) error) error {
	rows, err := s.stmts[sqlList].QueryContext(ctx, typ)
	if err != nil {
		return fmt.Errorf("list %s: %w", typ, s.classify(err))
	}
	defer rows.Close()
	for rows.Next() {
		m := Meta{Type: typ}
		if err := rows.Scan(&m.Key, &m.Value); err != nil {
			return fmt.Errorf("list %s: %w", typ, s.classify(err))
		}
		if err := do(m); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("list %s: %w", typ, s.classify(err))
	}
	return nil
}

// Outbox returns the reports that wait, the newest on each object, in the order in which they were made.
func (s *Store) Outbox(ctx context.Context) ([]Report, error) {
	return s.reports(ctx, sqlOutbox, func(r *Report) []any { return []any{&r.Key, &r.Seq, &r.First, &r.Value} })
}

// OutboxKeys returns the reports that wait without their values, those first whose object has waited longest.
func (s *Store) OutboxKeys(ctx context.Context) ([]Report, error) {
	return s.reports(ctx, sqlOutboxKeys, func(r *Report) []any { return []any{&r.Key, &r.Seq, &r.First} })
}

// reports returns what a statement finds in the outbox; fields are where its columns go.
func (s *Store) reports(ctx context.Context, text string, fields func(*Report) []any) ([]Report, error) {
	rows, err := s.stmts[text].QueryContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list outbox: %w", s.classify(err))
	}
	defer rows.Close()
	var list []Report
	for rows.Next() {
		var r Report
		if err := rows.Scan(fields(&r)...); err != nil {
			return nil, fmt.Errorf("list outbox: %w", s.classify(err))
		}
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list outbox: %w", s.classify(err))
	}
	return list, nil
}

// OutboxGet returns the newest report on an object, or ErrNotFound.
func (s *Store) OutboxGet(ctx context.Context, key string) (Report, error) {
	r := Report{Key: key}
	err := s.stmts[sqlOutboxGet].QueryRowContext(ctx, key).Scan(&r.Seq, &r.First, &r.Value)
	if errors.Is(err, sql.ErrNoRows) {
		return Report{}, fmt.Errorf("report %s: %w", key, ErrNotFound)
	}
	if err != nil {
		return Report{}, fmt.Errorf("read report %s: %w", key, s.classify(err))
	}
	return r, nil
}

// AgentValue returns what the agent noted about itself, or ErrNotFound.
func (s *Store) AgentValue(ctx context.Context, key string) (string, error) {
	var value string
	err := s.stmts[sqlAgentGet].QueryRowContext(ctx, key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("note %s: %w", key, ErrNotFound)
	}
	if err != nil {
		return "", fmt.Errorf("read note %s: %w", key, s.classify(err))
	}
	return value, nil
}
