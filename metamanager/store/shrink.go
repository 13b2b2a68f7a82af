package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// readersWithin is how long the writer waits for readers to be free.
const readersWithin = 100 * time.Millisecond

// shrink gives the memory of cached pages back, which are read again when they are needed. Only the writer may call it.
// Connections stay open: if the disk fails, no new ones can be opened.
func (s *Store) shrink() error {
	ctx, cancel := context.WithTimeout(context.Background(), readersWithin)
	defer cancel()
	errs := []error{shrink(ctx, s.writer.conn)}
	for range s.read.Stats().Idle { // each keeps its connection until all have one
		conn, err := s.read.Conn(ctx)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		defer conn.Close()
		errs = append(errs, shrink(ctx, conn))
	}
	return errors.Join(errs...)
}

func shrink(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "PRAGMA shrink_memory")
	return err
}
