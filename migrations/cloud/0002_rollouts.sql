-- Roll-outs: docs/decisions/0038-roll-outs.md.

-- The roll-outs of configured rules with a name. A rule that is an object has its roll-out in its own status.
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
