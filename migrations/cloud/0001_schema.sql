-- The database of the embedded cloud. docs/decisions/0003-cloud-versions.md explains how versions are assigned.

-- One row: the counters of the file.
CREATE TABLE meta (
  id           INTEGER PRIMARY KEY CHECK (id = 1),
  last_version INTEGER NOT NULL,      -- the last resourceVersion assigned
  incarnation  TEXT NOT NULL          -- random; changed when a rollback is detected
) STRICT;

-- Each opening of the file skips versions: those in (previous_last, base] were never assigned by this file.
CREATE TABLE openings (
  base          INTEGER PRIMARY KEY,
  previous_last INTEGER NOT NULL,
  opened        TEXT NOT NULL,
  renewed       INTEGER NOT NULL      -- 1 if it started a new incarnation, which accounts for earlier losses
) STRICT;

-- Stored kinds, so that a row names its kind in one or two bytes.
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
  -- Of an Event: the last change, Unix time in milliseconds. NULL for objects that do not expire, which the indexes omit.
  changed     INTEGER,
  labels      TEXT                    -- metadata.labels as JSON text; NULL without any
) STRICT;
-- Names are unique without UNIQUE: an insert checks for the name in the same transaction. The index includes the labels, so
-- that it answers selectors. See docs/decisions/0006-api-machinery.md.
CREATE INDEX objects_by_name ON objects (resource_id, namespace, name, labels);
-- Sync records are looked up by their object, never by their own random UID, which this index omits.
CREATE UNIQUE INDEX objects_by_uid ON objects (uid) WHERE sync_node IS NULL;
CREATE UNIQUE INDEX objects_by_sync ON objects (sync_node, sync_uid) WHERE sync_node IS NOT NULL;
CREATE INDEX objects_by_change ON objects (changed) WHERE changed IS NOT NULL;
-- The Events of each node by age, to limit their number. An annotation of an Event names its node.
CREATE INDEX objects_by_maker ON objects (body ->> '$.metadata.annotations."edgesync.io/node"', changed)
  WHERE changed IS NOT NULL;

-- The newest changes, for watches, in partitions with separate bounds: frequent writes of the fleet do not displace the
-- changes of operators.
CREATE TABLE partitions (
  id    INTEGER PRIMARY KEY,          -- 0 all other kinds, 1 Nodes, 2 ObjectSyncs, 3 Leases, 4 Events
  start INTEGER NOT NULL              -- all changes after this version are in the partition
) STRICT;

-- The partitions 0 to 4.
CREATE TABLE events (
  version          INTEGER PRIMARY KEY,
  type             INTEGER NOT NULL,  -- 0 added, 1 modified, 2 deleted
  resource_id      INTEGER NOT NULL,
  namespace        TEXT NOT NULL,
  name             TEXT NOT NULL,
  object           TEXT NOT NULL,     -- after the change; the last state of a deleted one
  previous_version INTEGER,           -- NULL for an added object
  -- Of a modified object: its previous state, so that watches with a selector observe that it no longer matches. Of a record
  -- that only reports another version: the previous version; all else is as in `object`. NULL for added and deleted objects.
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

-- The state of each node beside its records.
CREATE TABLE nodes (
  name          TEXT PRIMARY KEY,
  epoch         TEXT NOT NULL,        -- of the node's store, 32 hexadecimal digits
  confirmed     INTEGER NOT NULL,     -- the revision of the node's store up to which records are complete
  incarnation   TEXT NOT NULL,        -- of this cloud, to which the node's records belong
  agent_version TEXT,
  last_seen     TEXT NOT NULL,
  -- Count and digest of the node's records, under the epoch of its store, compared with its Hello without reading the
  -- records. NULL if unknown; then they are computed from the records.
  held_count    INTEGER,
  held_digest   TEXT,                 -- 32 hexadecimal digits
  -- JSON: the recent database files of the node, each with the newest change ever recorded from it. A node that reports a
  -- newer change as confirmed got that confirmation from a newer copy of this store: this one was restored.
  epochs        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The progress of each node's outbox, written in the transaction of its effects. docs/decisions/0010-leases.md explains how
-- Leases are stored.
CREATE TABLE node_outboxes (
  node   TEXT PRIMARY KEY,
  outbox TEXT NOT NULL,               -- random, created with the outbox: numbers of another outbox do not compare
  status INTEGER NOT NULL,            -- the last number of each lane, the bits of an unsigned 64-bit integer
  events INTEGER NOT NULL,
  bulk   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The version of an object that is in effect on a node, for objects with rules for files, as last reported. Written in the
-- transaction of the outbox's progress.
CREATE TABLE effects (
  node    TEXT NOT NULL,
  uid     TEXT NOT NULL,              -- of the object
  epoch   TEXT NOT NULL,              -- the database file of the report; void for another one
  version TEXT,                       -- in effect; NULL if none is
  wanted  TEXT NOT NULL,              -- the version tried last
  state   TEXT NOT NULL,              -- InEffect, NotInEffect, Conflict; others are of later versions
  rule    TEXT NOT NULL,
  message TEXT NOT NULL,
  since   INTEGER NOT NULL,           -- Unix time in microseconds, by the node's clock
  PRIMARY KEY (node, uid)
) STRICT, WITHOUT ROWID;

-- Documents of enrollment: members, join tokens and operators, without signatures and keys. The API does not serve them.
CREATE TABLE documents (
  kind    TEXT NOT NULL,              -- member, token, operator
  id      TEXT NOT NULL,              -- the node; `jti` of the token; the serial number of the certificate
  node    TEXT,                       -- the node that it is for
  version INTEGER NOT NULL,           -- from the counter in `meta`; a write names the version that it replaces
  text    TEXT NOT NULL CHECK (json_valid(text)),
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX documents_by_node ON documents (node) WHERE kind = 'token';

-- The roll-outs (docs/decisions/0038-roll-outs.md) of configured rules with a name. A rule that is an object has its roll-out in its own status.
CREATE TABLE rollouts (
  rule   TEXT PRIMARY KEY,            -- the name of the rule
  status TEXT NOT NULL CHECK (json_valid(status))
) STRICT, WITHOUT ROWID;

-- The revisions of all rules whose bodies are stored.
CREATE TABLE revisions (
  id       INTEGER PRIMARY KEY,
  rule     TEXT NOT NULL,             -- uid/ and the UID of a rule, or name/ and the name of a configured one
  number   INTEGER NOT NULL,
  digest   TEXT NOT NULL,             -- of the set, 32 hexadecimal digits
  objects  TEXT NOT NULL,             -- the set as JSON: versions, references, sizes and digests by UID
  complete INTEGER NOT NULL,          -- 1 when all bodies are stored; before, no reader sees the revision
  UNIQUE (rule, number, digest)
) STRICT;

-- Bodies of revisions. Equal ones are stored once, whatever revisions have them.
CREATE TABLE revision_bodies (
  id     INTEGER PRIMARY KEY,
  digest TEXT NOT NULL UNIQUE,        -- 32 hexadecimal digits
  body   TEXT NOT NULL                -- JSON as it is sent to nodes
) STRICT;

CREATE TABLE revision_objects (
  revision INTEGER NOT NULL REFERENCES revisions (id),
  uid      TEXT NOT NULL,
  body     INTEGER NOT NULL REFERENCES revision_bodies (id),
  PRIMARY KEY (revision, uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX revision_objects_by_body ON revision_objects (body);
