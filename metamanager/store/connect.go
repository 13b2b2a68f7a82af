package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// pragmas are carried out on every connection before it is used. This is the only place that sets any.
var pragmas = []string{
	"PRAGMA busy_timeout=5000", // only a person with sqlite3 can hold the lock; wait for them
	"PRAGMA journal_mode=WAL",  // readers and the writer do not wait for each other; one fsync a commit
	// a commit is on the disk before it returns: acks depend on it (the driver's default is NORMAL)
	"PRAGMA synchronous=FULL",
	"PRAGMA wal_autocheckpoint=256",     // about 1 MiB of log, then it is folded into the file
	"PRAGMA journal_size_limit=1048576", // and the log shrinks to this again after a burst
	"PRAGMA cache_size=-512",            // 512 KiB of pages for each connection; the kernel caches the rest
	"PRAGMA mmap_size=0",                // a bad sector is then an error of a read, not a SIGBUS
	"PRAGMA temp_store=MEMORY",          // no scratch files on flash
	"PRAGMA secure_delete=FAST",         // deleted secrets are zeroed where that costs no write of its own
	"PRAGMA trusted_schema=OFF",         // a damaged or hostile schema runs no functions
	"PRAGMA foreign_keys=OFF",           // there are none
}

// readerPragmas are carried out after them on connections that only read.
var readerPragmas = []string{
	"PRAGMA query_only=ON",   // there is one writer
	"PRAGMA cache_size=-128", // 128 KiB: lists pass each page once
}

// access is what a connection is for.
type access int

const (
	// readWrite: the writer.
	readWrite access = iota
	// readOnly: a reader of the live store.
	readOnly
	// asItIs: no pragma that touches the file, to read one in an unknown state.
	asItIs
)

// connector makes connections without registering a driver, which would be a global.
type connector struct {
	dsn string
	drv *sqlite3.SQLiteDriver
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return c.drv.Open(c.dsn) }
func (c *connector) Driver() driver.Driver                        { return c.drv }

// connect returns a pool of up to max connections to a file, none of them open yet.
func connect(path string, how access, max int) *sql.DB {
	hook := func(c *sqlite3.SQLiteConn) error {
		var list []string
		if how != asItIs {
			list = pragmas
		}
		if how != readWrite {
			list = slices.Concat(list, readerPragmas)
		}
		for _, p := range list {
			if _, err := c.Exec(p, nil); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	}
	// As a URI, in which these characters of a path have to be written otherwise. The file is there already:
	// SQLite would make it readable for all.
	uri := "file:" + strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path) + "?mode=rw"
	db := sql.OpenDB(&connector{dsn: uri, drv: &sqlite3.SQLiteDriver{ConnectHook: hook}})
	db.SetMaxOpenConns(max)
	db.SetMaxIdleConns(max)
	return db
}
