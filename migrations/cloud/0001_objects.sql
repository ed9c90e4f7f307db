-- What the embedded cloud keeps. See docs/decisions/0003-cloud-versions.md for how versions are given.

-- One row: the counters of the file.
CREATE TABLE meta (
  id            INTEGER PRIMARY KEY CHECK (id = 1),
  last_version  INTEGER NOT NULL,     -- the last resourceVersion given
  history_start INTEGER NOT NULL,     -- every change after this version is in `events`
  incarnation   TEXT NOT NULL         -- random; changed when a rollback is noticed
) STRICT;

-- Each opening of the file jumps ahead: versions in (previous_last, base] were never given by this file.
CREATE TABLE openings (
  base          INTEGER PRIMARY KEY,
  previous_last INTEGER NOT NULL,
  opened        TEXT NOT NULL
) STRICT;

-- Kinds that have been stored, so that a row names its kind in one or two bytes.
CREATE TABLE resources (
  id          INTEGER PRIMARY KEY,
  "group"     TEXT NOT NULL,          -- empty for the core group
  version     TEXT NOT NULL,          -- the one seen first
  kind        TEXT NOT NULL,
  plural      TEXT NOT NULL,
  namespaced  INTEGER NOT NULL,       -- 1 if objects of the kind have a namespace
  UNIQUE ("group", kind),
  UNIQUE ("group", plural)
) STRICT;

CREATE TABLE objects (
  id          INTEGER PRIMARY KEY,
  resource_id INTEGER NOT NULL REFERENCES resources (id),
  api_version TEXT NOT NULL,          -- the version in the object's apiVersion, without the group
  namespace   TEXT NOT NULL,          -- empty for cluster-scoped objects
  name        TEXT NOT NULL,
  uid         TEXT NOT NULL,
  version     INTEGER NOT NULL,       -- metadata.resourceVersion
  sync_node   TEXT,                   -- of an ObjectSync or ClusterObjectSync: the node in its name
  sync_uid    TEXT,                   -- and the UID of the object it is about
  body        TEXT NOT NULL           -- JSON with sorted keys
) STRICT;
CREATE UNIQUE INDEX objects_by_name ON objects (resource_id, namespace, name);
-- Records are found by what they are about, never by their own random UID: they are spared that index.
CREATE UNIQUE INDEX objects_by_uid ON objects (uid) WHERE sync_node IS NULL;
CREATE UNIQUE INDEX objects_by_sync ON objects (sync_node, sync_uid) WHERE sync_node IS NOT NULL;

-- The newest changes, for watches.
CREATE TABLE events (
  version     INTEGER PRIMARY KEY,
  type        INTEGER NOT NULL,       -- 0 added, 1 modified, 2 deleted
  resource_id INTEGER NOT NULL,
  namespace   TEXT NOT NULL,
  name        TEXT NOT NULL,
  object      TEXT NOT NULL           -- as it was after the change; a deleted one as it was last
) STRICT;

-- What is known of each node beside its records.
CREATE TABLE nodes (
  name          TEXT PRIMARY KEY,
  epoch         TEXT NOT NULL,        -- of the node's store, 32 hexadecimal digits
  confirmed     INTEGER NOT NULL,     -- the revision of the node's store up to which records are complete
  incarnation   TEXT NOT NULL,        -- of this cloud, that the node's records belong to
  agent_version TEXT,
  last_seen     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
