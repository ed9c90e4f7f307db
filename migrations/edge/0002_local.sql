-- Leases and Events that were made on this node. They are no part of revision, count and digest.
-- kind: 1 Lease, 2 Event. version: of the sequence of this table, unique. changed: Unix time in seconds.
-- checksum: over all columns but id. Comments stand out here because the schema must fit on one page.
CREATE TABLE local_objects (
  id INTEGER PRIMARY KEY,
  kind INTEGER NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX local_objects_by_name ON local_objects (kind, namespace, name);
