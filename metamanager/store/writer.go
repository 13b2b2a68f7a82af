package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// The writer is the only one who writes to the file. It takes the Applies that wait when it is free, does them
// in one transaction, and answers each when that is on the disk: while one transaction waits for its fsync,
// the next Applies gather. Nothing waits in order to gather; the writer only lets others run first.
//
// An error is of one of three kinds:
//
//	of an operation      (a value above SQLite's limit, a guard that panics): its Apply is undone, the others go on
//	of the disk          (full): the transaction is undone, then each Apply gets one of its own, so that a small one or
//	                     a delete does not fail for a large one's sake
//	of the file          (damage, I/O): the transaction is undone, all of its Applies get the error
//
// In no case is anything acknowledged that is not on the disk.

// job is one Apply on its way.
type job struct {
	ops  []Op
	done chan error
}

// Apply does operations together, and returns when they are on the disk. A context that ends while they
// wait gives the wait up, not the operations: they may yet be done. Errors to act upon: ErrFull, ErrReadOnly,
// ErrCorrupt, ErrClosed; nothing was stored then.
func (s *Store) Apply(ctx context.Context, ops ...Op) error {
	if len(ops) == 0 {
		return nil
	}
	if s.frozen {
		return ErrReadOnly
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

// seqBlock is how many reports are made between two notes of the highest seq.
const seqBlock = 1000

type writer struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	note  func(error) error
	// reserve is set before run; tight is true while it is spent.
	reserve reserve
	tight   bool
	// urgent is what urgent operations have taken of the reserve since it was spent, in bytes by key.
	urgent map[string]int64

	maxBatch int
	// quiet is called when there has been nothing to do for a while.
	quiet func()
	// seq is that of the newest report; noted is the bound on it that is in the file, 0 for none of this run.
	seq, noted int64
}

func newWriter(ctx context.Context, db *sql.DB, maxBatch int, note func(error) error) (*writer, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{conn: conn, stmts: map[string]*sql.Stmt{}, note: note, maxBatch: maxBatch}
	for _, text := range writerStatements {
		if w.stmts[text], err = conn.PrepareContext(ctx, text); err != nil {
			delete(w.stmts, text)
			return nil, errors.Join(fmt.Errorf("prepare %q: %w", text, err), w.close())
		}
	}
	if err := conn.QueryRowContext(ctx, sqlLastSeq).Scan(&w.seq); err != nil {
		return nil, errors.Join(err, w.close())
	}
	// Fails where the head of the file says that it must not be written.
	if err := errors.Join(w.exec(sqlBegin), w.exec(sqlRollback)); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *writer) close() error {
	var errs []error
	for _, s := range w.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// quietAfter is how long there must be nothing to do until memory is given back.
const quietAfter = time.Minute

// run does jobs until the channel is closed.
func (w *writer) run(jobs <-chan *job) {
	batch := make([]*job, 0, w.maxBatch)
	idle := time.NewTimer(quietAfter)
	defer idle.Stop()
	for {
		var first *job
		select {
		case j, ok := <-jobs:
			if !ok {
				return
			}
			first = j
			idle.Reset(quietAfter)
		case <-idle.C:
			w.quiet()
			continue
		}
		batch = append(batch[:0], first)
		// Those who have just been answered get to ask again: with 16 senders on 2 cores that makes 13 Applies a
		// transaction, and 8 without.
		runtime.Gosched()
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
		w.serve(batch)
		clear(batch) // the values are the caller's, not ours to keep
	}
}

// serve does a batch and answers each of its jobs.
func (w *writer) serve(batch []*job) {
	if w.tight {
		if w.tight = !w.reserve.ensure(); !w.tight {
			w.urgent = nil
		}
	}
	errs := make([]error, len(batch))
	err := w.commit(batch, errs)
	full := isFull(err)
	defer func() {
		if w.tight && len(w.urgent) > 0 {
			w.checkpoint() // while there is room for the file to grow: the log must not take all of the reserve
		}
	}()
	for i, j := range batch {
		own := errors.Join(err, errs[i])
		if full && len(batch) > 1 {
			own = w.alone(j)
		}
		if full && isFull(own) {
			own = w.makeRoom(j, own)
		}
		if own != nil {
			w.giveBack(j.ops)
			own = fmt.Errorf("write %s to the store: %w", j.ops[0].meta.Key, w.note(own))
		}
		j.done <- own
	}
}

// makeRoom tries what may give a job the room that it lacks: the log can begin again when it was folded into the
// file, and what only takes away, or is urgent, may have the reserve.
func (w *writer) makeRoom(j *job, err error) error {
	for _, try := range []func() bool{
		w.checkpoint,
		func() bool { return w.mayHaveReserve(j.ops) && w.release() },
		func() bool { return w.mayHaveReserve(j.ops) && w.checkpoint() },
	} {
		if isFull(err) && try() {
			err = w.alone(j)
		}
	}
	return err
}

// urgentPage is what an urgent operation takes of the reserve beside its value: the pages of the log that it changes.
const urgentPage = 4096

func (op Op) cost() int64 { return int64(len(op.meta.Key)+len(op.meta.Value)) + urgentPage }

// mayHaveReserve reports whether operations may be done out of the reserve.
func (w *writer) mayHaveReserve(ops []Op) bool {
	budget, spent := max(w.reserve.size, 0)/2, int64(0)
	for _, taken := range w.urgent {
		spent += taken
	}
	for _, op := range ops {
		switch {
		case op.takesAway():
		case !op.urgent || op.cost() > budget/4:
			return false
		default:
			spent += op.cost() - w.urgent[op.meta.Key]
		}
	}
	return spent <= budget
}

// takeReserve notes what operations take of the reserve, and what those give back that take away.
func (w *writer) takeReserve(ops []Op) {
	for _, op := range ops {
		if op.takesAway() {
			delete(w.urgent, op.meta.Key)
			continue
		}
		if w.urgent == nil {
			w.urgent = map[string]int64{}
		}
		w.urgent[op.meta.Key] = op.cost()
	}
}

// giveBack forgets what operations that failed were to take.
func (w *writer) giveBack(ops []Op) {
	for _, op := range ops {
		if op.urgent {
			delete(w.urgent, op.meta.Key)
		}
	}
}

// checkpoint folds the log into the file as far as readers and the room allow.
func (w *writer) checkpoint() bool {
	_, err := w.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	return err == nil
}

func (w *writer) release() bool {
	released := w.reserve.release()
	w.tight = w.tight || released
	return released
}

// runCheckpoint checkpoints the log into the file when there are no readers. If the disk is full, the data stays in the
// log, where it is as safe.
func (w *writer) runCheckpoint() error {
	fold := func() error {
		_, err := w.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
		return err
	}
	err := fold()
	if isFull(err) && w.release() {
		err = fold()
	}
	if isFull(err) {
		return nil
	}
	return err
}

// alone does a job in a transaction of its own.
func (w *writer) alone(j *job) error {
	errs := []error{nil}
	err := w.commit([]*job{j}, errs)
	return errors.Join(err, errs[0])
}

// commit does a batch in one transaction. errs gets the errors of single jobs; if the transaction as a whole
// fails, none of it was done.
func (w *writer) commit(batch []*job, errs []error) error {
	clear(errs)
	if err := w.exec(sqlBegin); err != nil {
		return err
	}
	for i, j := range batch {
		own, fatal := w.apply(j)
		if fatal != nil {
			return w.rollback(fatal)
		}
		errs[i] = own
	}
	if err := w.exec(sqlCommit); err != nil {
		return w.rollback(err)
	}
	return nil
}

// rollback undoes a transaction, for a reason that it returns.
func (w *writer) rollback(reason error) error {
	w.noted = 0
	// After some errors SQLite has rolled back by itself; then this fails, and rightly.
	_ = w.exec(sqlRollback)
	return reason
}

// apply does the operations of one job. own is an error of this job alone, which was undone; fatal is one of
// the whole transaction.
func (w *writer) apply(j *job) (own, fatal error) {
	if w.tight {
		if !w.mayHaveReserve(j.ops) {
			return ErrFull, nil // what is left of the room is for deletes
		}
		w.takeReserve(j.ops)
	}
	// One statement undoes itself; several need a savepoint.
	several := len(j.ops) > 1 || j.ops[0].kind == opOutboxPut
	if several {
		if err := w.exec(sqlSavepoint); err != nil {
			return nil, err
		}
	}
	for _, op := range j.ops {
		if own = w.do(op); own != nil {
			break
		}
	}
	switch {
	case own != nil && !ownError(own):
		return nil, own
	case !several:
		return own, nil
	case own != nil:
		w.noted = 0
		if err := w.exec(sqlRollbackTo); err != nil {
			return nil, errors.Join(own, err)
		}
	}
	return own, w.exec(sqlRelease)
}

func (w *writer) do(op Op) error {
	switch op.kind {
	case opUpsert, opReplace:
		if op.guard != nil {
			if ok, err := w.checkGuard(op, op.kind == opUpsert); err != nil || !ok {
				return err
			}
		}
		return w.exec(sqlUpsert, op.meta.Key, op.meta.Type, string(op.meta.Value))
	case opDelete:
		if op.guard != nil {
			if ok, err := w.checkGuard(op, false); err != nil || !ok {
				return err
			}
		}
		return w.exec(sqlDelete, op.meta.Key)
	case opOutboxPut:
		return w.outboxPut(op)
	case opOutboxAck:
		return w.exec(sqlOutboxAck, op.meta.Key, op.seq)
	case opAgentSet, opAgentDelete:
		if op.meta.Key == seqKey {
			return fmt.Errorf("%w: the note %s is the store's own", errBadOp, seqKey)
		}
		if op.kind == opAgentDelete {
			return w.exec(sqlAgentDelete, op.meta.Key)
		}
		return w.exec(sqlAgentSet, op.meta.Key, string(op.meta.Value))
	}
	return fmt.Errorf("%w: unknown kind %d", errBadOp, op.kind)
}

// checkGuard asks a guard about the stored value; without one the answer is none.
func (w *writer) checkGuard(op Op, none bool) (ok bool, err error) {
	var old []byte
	var typ string
	err = w.stmts[sqlGet].QueryRow(op.meta.Key).Scan(&old, &typ)
	if errors.Is(err, sql.ErrNoRows) {
		return none, nil
	}
	if err != nil {
		return false, err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: the guard of %s panicked: %v", errBadOp, op.meta.Key, r)
		}
	}()
	return op.guard(old), nil
}

// outboxPut stores a report under the next seq, and sees to it that no later run gives out the same.
func (w *writer) outboxPut(op Op) error {
	res, err := w.stmts[sqlOutboxPut].Exec(op.meta.Key, w.seq+1, string(op.meta.Value))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err // the same report as before
	}
	w.seq++
	if w.seq < w.noted {
		return nil
	}
	bound := w.seq + seqBlock
	if err := w.exec(sqlAgentSet, seqKey, fmt.Sprint(bound)); err != nil {
		return err
	}
	w.noted = bound
	return nil
}

func (w *writer) exec(text string, args ...any) error {
	_, err := w.stmts[text].Exec(args...)
	return err
}
