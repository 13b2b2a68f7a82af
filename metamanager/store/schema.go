package store

// The schema. People look inside with sqlite3, so the tables and keys of KubeEdge keep their names
// (docs/wire.md, Local store); those that later parts need are made by their own migrations.
//
//	meta                          desired state, and the newest reported status of pods
//	  key    text primary key     resource on the wire: "default/pod/web", "null/node/edge1"
//	  type   text                 "pod", "configmap", "secret", "podpatch" ...
//	  value  text                 the object as JSON
//	  index  (type, key)          List reads a type in order without sorting
//
//	outbox                        reports that the cloud has not acknowledged yet
//	  key    text primary key     the object reported on: newest wins, one row for each
//	  seq    integer              grows with each report; an ack names the one it is for
//	  value  text                 the message as JSON
//	  first  integer              seq of the first report of this row: since then the cloud has not heard of the object
//
//	agent                         what the agent has to remember about itself
//	  key    text primary key     "outbox.seq" is the store's own: no seq at or above it was given out yet
//	  value  text
//
// PRAGMA user_version is the number of migrations that a file has seen. A file of KubeEdge has
// version 0 and a table meta already: the first migration keeps it. A migration that was once released
// is never changed.
//
// PRAGMA application_id records the oldest schema that can still use the file: readableMagic, plus that schema's
// version. Both numbers are in the file's first page and change in the migration's transaction, and both can be read
// whatever a newer version has done to the tables. Files without the mark can be used by their own version only.
var migrations = []migration{
	{sql: `CREATE TABLE IF NOT EXISTS meta (key text NOT NULL PRIMARY KEY, type text, value text);
	 CREATE INDEX IF NOT EXISTS idx_meta_type ON meta (type);
	 CREATE TABLE outbox (key text NOT NULL PRIMARY KEY, seq integer NOT NULL, value text NOT NULL);
	 CREATE TABLE agent (key text NOT NULL PRIMARY KEY, value text NOT NULL);`},

	// An agent of schema 1 would leave first at 0.
	{sql: `ALTER TABLE outbox ADD COLUMN first integer NOT NULL DEFAULT 0;
	 UPDATE outbox SET first=seq;
	 DROP INDEX idx_meta_type;
	 CREATE INDEX idx_meta_type_key ON meta (type, key);`},
}

// migration is one step of the schema.
type migration struct {
	sql string
	// compatible declares that agents which know only the schema before this step can use the result, reading and
	// writing, and that the result is right for this version when they have. It holds if all of this is true:
	//
	//   - Every statement of the older version works unchanged. A new column is nullable or has a default, and no new
	//     constraint refuses a row that the older version writes.
	//   - A row that the older version wrote, with the defaults in its new columns, means to this version what it
	//     meant to the older one. A value such as 0 must not be mistaken for one that was set.
	//   - What this version derives from other tables stays right while the older version changes those: by a trigger,
	//     or because this version computes it again when it opens the file.
	//
	// The step is not run again when the newer version returns. Most steps, a new table or column, are compatible; one
	// that does not say so is not.
	compatible bool
}

// readableBy returns the oldest schema whose agents can use a file of a version.
func readableBy(version int) int {
	for version > 1 && migrations[version-1].compatible {
		version--
	}
	return version
}

const (
	// readableMagic is in the upper half of application_id ("EC"), the version in the lower.
	readableMagic = 0x4543 << 16
	readableMask  = 0xffff << 16
)

// seqKey is the row of agent that keeps a seq from being given out twice.
const seqKey = "outbox.seq"

// What the store asks of its file. All of it is prepared once for each connection.
const (
	sqlGet        = "SELECT ifnull(value,''), ifnull(type,'') FROM meta WHERE key=?"
	sqlList       = "SELECT key, ifnull(value,'') FROM meta WHERE type=? ORDER BY key"
	sqlOutbox     = "SELECT key, seq, first, value FROM outbox ORDER BY seq"
	sqlOutboxKeys = "SELECT key, seq, first FROM outbox ORDER BY first, seq"
	sqlOutboxGet  = "SELECT seq, first, value FROM outbox WHERE key=?"
	sqlAgentGet   = "SELECT value FROM agent WHERE key=?"
	sqlLastSeq    = "SELECT max((SELECT ifnull(max(seq),0) FROM outbox), (SELECT ifnull(max(CAST(value AS " +
		"integer)),0) FROM agent WHERE key='" + seqKey + "'))"

	// A value that is what it was changes no page: the WHERE of each upsert sees to it.
	sqlUpsert = "INSERT INTO meta(key,type,value) VALUES(?,?,?) ON CONFLICT(key) DO UPDATE SET type=excluded.type, " +
		"value=excluded.value " +
		"WHERE type IS NOT excluded.type OR value IS NOT excluded.value"
	sqlDelete    = "DELETE FROM meta WHERE key=?"
	sqlOutboxPut = "INSERT INTO outbox(key,seq,first,value) VALUES(?1,?2,?2,?3) ON CONFLICT(key) DO UPDATE SET " +
		"seq=excluded.seq, value=excluded.value " +
		"WHERE value<>excluded.value"
	sqlOutboxAck = "DELETE FROM outbox WHERE key=? AND seq=?"
	sqlAgentSet  = "INSERT INTO agent(key,value) VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value " +
		"WHERE value<>excluded.value"
	sqlAgentDelete = "DELETE FROM agent WHERE key=?"

	sqlBegin      = "BEGIN IMMEDIATE"
	sqlCommit     = "COMMIT"
	sqlRollback   = "ROLLBACK"
	sqlSavepoint  = "SAVEPOINT op"
	sqlRelease    = "RELEASE op"
	sqlRollbackTo = "ROLLBACK TO op"
)

var (
	readerStatements = []string{sqlGet, sqlList, sqlOutbox, sqlOutboxKeys, sqlOutboxGet, sqlAgentGet}
	writerStatements = []string{sqlGet, sqlUpsert, sqlDelete, sqlOutboxPut, sqlOutboxAck, sqlAgentSet, sqlAgentDelete,
		sqlBegin, sqlCommit, sqlRollback, sqlSavepoint, sqlRelease, sqlRollbackTo}
)
