-- What the embedded cloud keeps. See docs/decisions/0003-cloud-versions.md for how versions are given.

-- One row: the counters of the file.
CREATE TABLE meta (
  id           INTEGER PRIMARY KEY CHECK (id = 1),
  last_version INTEGER NOT NULL,      -- the last resourceVersion given
  incarnation  TEXT NOT NULL          -- random; changed when a rollback is noticed
) STRICT;

-- Each opening of the file jumps ahead: versions in (previous_last, base] were never given by this file.
CREATE TABLE openings (
  base          INTEGER PRIMARY KEY,
  previous_last INTEGER NOT NULL,
  opened        TEXT NOT NULL,
  renewed       INTEGER NOT NULL      -- 1 if a new incarnation began with it: losses from before are what it began for
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
  body        TEXT NOT NULL,          -- JSON with sorted keys
  -- Of an Event: when it was changed last, Unix time in milliseconds. NULL for everything that lives for good, which is
  -- spared the indexes.
  changed     INTEGER,
  labels      TEXT                    -- metadata.labels as JSON text; NULL without any
) STRICT;
-- Names stay unique without UNIQUE: whoever inserts has looked for the name in the same transaction. Labels stand beside the
-- names so that a selector is answered from the index. See docs/decisions/0006-api-machinery.md.
CREATE INDEX objects_by_name ON objects (resource_id, namespace, name, labels);
-- Records are found by what they are about, never by their own random UID: they are spared that index.
CREATE UNIQUE INDEX objects_by_uid ON objects (uid) WHERE sync_node IS NULL;
CREATE UNIQUE INDEX objects_by_sync ON objects (sync_node, sync_uid) WHERE sync_node IS NOT NULL;
CREATE INDEX objects_by_change ON objects (changed) WHERE changed IS NOT NULL;
-- The Events of each node by age, so that it has only so many of them: the node that has made an Event is in an annotation.
CREATE INDEX objects_by_maker ON objects (body ->> '$.metadata.annotations."edgesync.io/node"', changed)
  WHERE changed IS NOT NULL;

-- The newest changes, for watches, in partitions with bounds of their own: whatever the fleet writes in great numbers leaves
-- what people write alone.
CREATE TABLE partitions (
  id    INTEGER PRIMARY KEY,          -- 0 all other kinds, 1 Nodes, 2 ObjectSyncs, 3 Leases, 4 Events
  start INTEGER NOT NULL              -- every change after this version is in the partition
) STRICT;

-- The partitions 0 to 4.
CREATE TABLE events (
  version          INTEGER PRIMARY KEY,
  type             INTEGER NOT NULL,  -- 0 added, 1 modified, 2 deleted
  resource_id      INTEGER NOT NULL,
  namespace        TEXT NOT NULL,
  name             TEXT NOT NULL,
  object           TEXT NOT NULL,     -- as it was after the change; a deleted one as it was last
  previous_version INTEGER,           -- NULL for an added object
  -- Of a modified object: as it was before, so that whoever watches a selection learns that an object has left it. Of a
  -- record that only tells of another version: that version as it was before; all else is as in `object`. NULL for added and
  -- deleted objects: `object` says it all.
  previous         TEXT
) STRICT;
CREATE TABLE node_changes (
  version          INTEGER PRIMARY KEY,
  type             INTEGER NOT NULL,
  resource_id      INTEGER NOT NULL,
  namespace        TEXT NOT NULL,
  name             TEXT NOT NULL,
  object           TEXT NOT NULL,
  previous_version INTEGER,
  previous         TEXT
) STRICT;
CREATE TABLE record_changes (
  version          INTEGER PRIMARY KEY,
  type             INTEGER NOT NULL,
  resource_id      INTEGER NOT NULL,
  namespace        TEXT NOT NULL,
  name             TEXT NOT NULL,
  object           TEXT NOT NULL,
  previous_version INTEGER,
  previous         TEXT
) STRICT;
CREATE TABLE lease_changes (
  version          INTEGER PRIMARY KEY,
  type             INTEGER NOT NULL,
  resource_id      INTEGER NOT NULL,
  namespace        TEXT NOT NULL,
  name             TEXT NOT NULL,
  object           TEXT NOT NULL,
  previous_version INTEGER,
  previous         TEXT
) STRICT;
CREATE TABLE event_changes (
  version          INTEGER PRIMARY KEY,
  type             INTEGER NOT NULL,
  resource_id      INTEGER NOT NULL,
  namespace        TEXT NOT NULL,
  name             TEXT NOT NULL,
  object           TEXT NOT NULL,
  previous_version INTEGER,
  previous         TEXT
) STRICT;

-- What is known of each node beside its records.
CREATE TABLE nodes (
  name          TEXT PRIMARY KEY,
  epoch         TEXT NOT NULL,        -- of the node's store, 32 hexadecimal digits
  confirmed     INTEGER NOT NULL,     -- the revision of the node's store up to which records are complete
  incarnation   TEXT NOT NULL,        -- of this cloud, that the node's records belong to
  agent_version TEXT,
  last_seen     TEXT NOT NULL,
  -- Count and digest of the node's records, under the epoch of its store: what its Hello is compared with, without a look at
  -- the records. NULL if they are not known; then they are counted from the records.
  held_count    INTEGER,
  held_digest   TEXT,                 -- 32 hexadecimal digits
  -- JSON: the database files that the node has had lately, each with the newest change that was ever recorded of it. A node
  -- that calls more than that confirmed has been told so by a store of which this one is an older copy.
  epochs        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- How far the outbox of each node has taken effect: written in the transaction of the effects. See
-- docs/decisions/0010-leases.md for how Leases are kept.
CREATE TABLE node_outboxes (
  node   TEXT PRIMARY KEY,
  outbox TEXT NOT NULL,               -- random, made with the outbox: numbers of another one mean nothing
  status INTEGER NOT NULL,            -- the last number of each lane, as 64 bits without a sign
  events INTEGER NOT NULL,
  bulk   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which version of an object the programs on a node work with, where rules for files concern it: as the node said last.
-- Written in the transaction of the numbers of its outbox.
CREATE TABLE effects (
  node    TEXT NOT NULL,
  uid     TEXT NOT NULL,              -- of the object
  epoch   TEXT NOT NULL,              -- the database file of the node that has said it: of another one it says nothing
  version TEXT,                       -- in effect; NULL if none is
  wanted  TEXT NOT NULL,              -- tried last
  state   TEXT NOT NULL,              -- InEffect, NotInEffect, Conflict; others are of later versions
  rule    TEXT NOT NULL,
  message TEXT NOT NULL,
  since   INTEGER NOT NULL,           -- Unix time in microseconds, by the node's clock
  PRIMARY KEY (node, uid)
) STRICT, WITHOUT ROWID;

-- Who may join, who has joined and who may use the API: documents of enrollment, without signatures and keys. No part of the
-- API.
CREATE TABLE documents (
  kind    TEXT NOT NULL,              -- member, token, operator
  id      TEXT NOT NULL,              -- the node; `jti` of the token; the serial number of the certificate
  node    TEXT,                       -- the node that it is for
  version INTEGER NOT NULL,           -- of the counter in `meta`: a write names the version that it replaces
  text    TEXT NOT NULL CHECK (json_valid(text)),
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX documents_by_node ON documents (node) WHERE kind = 'token';
