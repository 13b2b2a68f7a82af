package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Op is one operation of an Apply. Make one with the functions below.
type Op struct {
	kind  opKind
	meta  Meta
	seq   int64
	guard func(old []byte) bool
}

type opKind int

const (
	opUpsert opKind = iota
	opDelete
	opOutboxPut
	opOutboxAck
	opAgentSet
	opAgentDelete
)

// Upsert stores a row, in place of one of the same key.
func Upsert(m Meta) Op { return Op{kind: opUpsert, meta: m} }

// UpsertIf stores a row if there is none of that key, or if guard says so of its value.
func UpsertIf(m Meta, guard func(old []byte) bool) Op {
	return Op{kind: opUpsert, meta: m, guard: guard}
}

// Delete removes a row; one that is not there is no error.
func Delete(key string) Op { return Op{kind: opDelete, meta: Meta{Key: key}} }

// DeleteIf removes a row if guard says so of its value.
func DeleteIf(key string, guard func(old []byte) bool) Op {
	return Op{kind: opDelete, meta: Meta{Key: key}, guard: guard}
}

// OutboxPut stores a report on an object, in place of an older one.
func OutboxPut(key string, value []byte) Op {
	return Op{kind: opOutboxPut, meta: Meta{Key: key, Value: value}}
}

// OutboxAck removes a report if no newer one took its place.
func OutboxAck(key string, seq int64) Op {
	return Op{kind: opOutboxAck, meta: Meta{Key: key}, seq: seq}
}

// AgentSet notes something about the agent itself.
func AgentSet(key, value string) Op {
	return Op{kind: opAgentSet, meta: Meta{Key: key, Value: []byte(value)}}
}

// AgentDelete removes such a note.
func AgentDelete(key string) Op { return Op{kind: opAgentDelete, meta: Meta{Key: key}} }

// job is one Apply on its way.
type job struct {
	ops  []Op
	done chan error
}

// Apply does operations together, and returns when they are on the disk. A context that ends while they
// wait gives the wait up, not the operations: they may yet be done.
func (s *Store) Apply(ctx context.Context, ops ...Op) error {
	if len(ops) == 0 {
		return nil
	}
	j := &job{ops: ops, done: make(chan error, 1)}
	s.closing.RLock()
	if s.closed {
		s.closing.RUnlock()
		return ErrClosed
	}
	select {
	case s.jobs <- j:
		s.closing.RUnlock()
	case <-ctx.Done():
		s.closing.RUnlock()
		return ctx.Err()
	}
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writer is the only one who writes to the file.
type writer struct {
	db       *sql.DB
	maxBatch int
	conn     *sql.Conn
	stmts    map[string]*sql.Stmt
	// seq is that of the newest report.
	seq int64
}

// The statements of the writer. A value that is what it was changes no page.
const (
	sqlGet         = "SELECT ifnull(value,''), ifnull(type,'') FROM meta WHERE key=?"
	sqlUpsert      = "INSERT INTO meta(key,type,value) VALUES(?,?,?) ON CONFLICT(key) DO UPDATE SET type=excluded.type, value=excluded.value"
	sqlDelete      = "DELETE FROM meta WHERE key=?"
	sqlOutboxGet   = "SELECT value FROM outbox WHERE key=?"
	sqlOutboxPut   = "INSERT INTO outbox(key,seq,value) VALUES(?,?,?) ON CONFLICT(key) DO UPDATE SET seq=excluded.seq, value=excluded.value"
	sqlOutboxAck   = "DELETE FROM outbox WHERE key=? AND seq=?"
	sqlAgentSet    = "INSERT INTO agent(key,value) VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value WHERE value<>excluded.value"
	sqlAgentDelete = "DELETE FROM agent WHERE key=?"
)

func newWriter(ctx context.Context, db *sql.DB, maxBatch int) (*writer, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{db: db, maxBatch: maxBatch, conn: conn, stmts: map[string]*sql.Stmt{}}
	for _, text := range []string{sqlGet, sqlUpsert, sqlDelete, sqlOutboxGet, sqlOutboxPut, sqlOutboxAck, sqlAgentSet, sqlAgentDelete,
		"BEGIN IMMEDIATE", "COMMIT", "ROLLBACK", "SAVEPOINT op", "RELEASE op", "ROLLBACK TO op"} {
		if w.stmts[text], err = conn.PrepareContext(ctx, text); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	if err := conn.QueryRowContext(ctx, "SELECT ifnull(max(seq),0) FROM outbox").Scan(&w.seq); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return w, nil
}

// run does jobs until the channel is closed: those that wait when a transaction begins share it.
func (w *writer) run(jobs <-chan *job) {
	defer w.close()
	batch := make([]*job, 0, w.maxBatch)
	for first := range jobs {
		batch = append(batch[:0], first)
	gather:
		for len(batch) < w.maxBatch {
			select {
			case j, ok := <-jobs:
				if !ok {
					break gather
				}
				batch = append(batch, j)
			default:
				break gather
			}
		}
		w.commit(batch)
	}
}

func (w *writer) close() {
	for _, s := range w.stmts {
		_ = s.Close() // the connection goes, too
	}
	_ = w.conn.Close()
}

// commit does a batch in one transaction and tells each job how it went. If the transaction as a whole fails,
// none of it was done.
func (w *writer) commit(batch []*job) {
	errs := make([]error, len(batch))
	err := w.exec("BEGIN IMMEDIATE")
	began := err == nil
	for i := 0; err == nil && i < len(batch); i++ {
		errs[i], err = w.apply(batch[i], len(batch) > 1)
	}
	if err == nil {
		err = w.exec("COMMIT")
	}
	if err != nil {
		err = fmt.Errorf("write to the store: %w", classify(err))
		if began {
			// SQLite may have rolled back by itself already; then this fails, and rightly.
			_ = w.exec("ROLLBACK")
		}
	}
	for i, j := range batch {
		if err != nil {
			j.done <- err
			continue
		}
		j.done <- errs[i]
	}
}

// apply does the operations of one job. own is an error of this job alone, which was undone; fatal is one of
// the whole transaction.
func (w *writer) apply(j *job, shared bool) (own, fatal error) {
	single := len(j.ops) == 1 || !shared
	if !single {
		if err := w.exec("SAVEPOINT op"); err != nil {
			return nil, err
		}
	}
	for _, op := range j.ops {
		if err := w.do(op); err != nil {
			if single || errors.Is(classify(err), ErrFull) || errors.Is(classify(err), ErrCorrupt) {
				return nil, err
			}
			if e := w.exec("ROLLBACK TO op"); e != nil {
				return nil, errors.Join(err, e)
			}
			return fmt.Errorf("write %s to the store: %w", op.meta.Key, classify(err)), w.exec("RELEASE op")
		}
	}
	if !single {
		return nil, w.exec("RELEASE op")
	}
	return nil, nil
}

func (w *writer) do(op Op) error {
	switch op.kind {
	case opUpsert:
		return w.upsert(op)
	case opDelete:
		if op.guard != nil {
			old, _, found, err := w.get(op.meta.Key)
			if err != nil || !found || !op.guard(old) {
				return err
			}
		}
		return w.exec(sqlDelete, op.meta.Key)
	case opOutboxPut:
		return w.outboxPut(op)
	case opOutboxAck:
		return w.exec(sqlOutboxAck, op.meta.Key, op.seq)
	case opAgentSet:
		return w.exec(sqlAgentSet, op.meta.Key, string(op.meta.Value))
	case opAgentDelete:
		return w.exec(sqlAgentDelete, op.meta.Key)
	}
	return fmt.Errorf("unknown operation %d", op.kind)
}

func (w *writer) upsert(op Op) error {
	old, typ, found, err := w.get(op.meta.Key)
	if err != nil {
		return err
	}
	if found && (typ == op.meta.Type && string(old) == string(op.meta.Value) || op.guard != nil && !op.guard(old)) {
		return nil
	}
	return w.exec(sqlUpsert, op.meta.Key, op.meta.Type, string(op.meta.Value))
}

func (w *writer) outboxPut(op Op) error {
	var old []byte
	err := w.stmts[sqlOutboxGet].QueryRow(op.meta.Key).Scan(&old)
	if err == nil && string(old) == string(op.meta.Value) {
		return nil
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	w.seq++
	return w.exec(sqlOutboxPut, op.meta.Key, w.seq, string(op.meta.Value))
}

func (w *writer) get(key string) (value []byte, typ string, found bool, err error) {
	err = w.stmts[sqlGet].QueryRow(key).Scan(&value, &typ)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, "", false, nil
	}
	return value, typ, err == nil, err
}

func (w *writer) exec(text string, args ...any) error {
	_, err := w.stmts[text].Exec(args...)
	return err
}
