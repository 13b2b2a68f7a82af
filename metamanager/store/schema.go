package store

// The schema. People look inside with sqlite3, so the tables and keys of KubeEdge keep their names
// (protocol section 10.3); those that later parts need are made by their own migrations.
//
//	meta                          desired state, and the newest reported status of pods
//	  key    text primary key     resource on the wire: "default/pod/web", "null/node/edge1"
//	  type   text                 "pod", "configmap", "secret", "podpatch" ...
//	  value  text                 the object as JSON
//
//	outbox                        reports that the cloud has not acknowledged yet
//	  key    text primary key     the object reported on: newest wins, one row for each
//	  seq    integer              grows with each report; an ack names the one it is for
//	  value  text                 the message as JSON
//
//	agent                         what the agent has to remember about itself
//	  key    text primary key
//	  value  text
//
// PRAGMA user_version is the number of migrations that a file has seen. A file of KubeEdge has
// version 0 and a table meta already: the first migration keeps it.
var migrations = []string{
	`CREATE TABLE IF NOT EXISTS meta (key text NOT NULL PRIMARY KEY, type text, value text);
	 CREATE INDEX IF NOT EXISTS idx_meta_type ON meta (type);
	 CREATE TABLE outbox (key text NOT NULL PRIMARY KEY, seq integer NOT NULL, value text NOT NULL);
	 CREATE TABLE agent (key text NOT NULL PRIMARY KEY, value text NOT NULL);`,
}
