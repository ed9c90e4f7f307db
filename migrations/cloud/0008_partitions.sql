-- The history in partitions, each with bounds of its own: whatever the fleet writes in great numbers leaves what people
-- write alone. `events` keeps the changes of what is not named here.

CREATE TABLE partitions (
  id    INTEGER PRIMARY KEY,          -- 0 all other kinds, 1 Nodes, 2 ObjectSyncs, 3 Leases, 4 Events
  start INTEGER NOT NULL              -- every change after this version is in the partition
) STRICT;
INSERT INTO partitions (id, start)
  SELECT id.value, history_start FROM meta, json_each('[0, 1, 2, 3, 4]') AS id;
ALTER TABLE meta DROP COLUMN history_start;

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

INSERT INTO node_changes
  SELECT version, type, resource_id, namespace, name, object, previous_version, previous FROM events
  WHERE resource_id IN (SELECT id FROM resources WHERE "group" = '' AND kind = 'Node');
INSERT INTO record_changes
  SELECT version, type, resource_id, namespace, name, object, previous_version, previous FROM events
  WHERE resource_id IN (SELECT id FROM resources
    WHERE "group" = 'reliablesyncs.kubeedge.io' AND kind IN ('ObjectSync', 'ClusterObjectSync'));
INSERT INTO lease_changes
  SELECT version, type, resource_id, namespace, name, object, previous_version, previous FROM events
  WHERE resource_id IN (SELECT id FROM resources WHERE "group" = 'coordination.k8s.io' AND kind = 'Lease');
INSERT INTO event_changes
  SELECT version, type, resource_id, namespace, name, object, previous_version, previous FROM events
  WHERE resource_id IN (SELECT id FROM resources WHERE "group" IN ('', 'events.k8s.io') AND kind = 'Event');
DELETE FROM events WHERE resource_id IN (SELECT id FROM resources
  WHERE ("group" = '' AND kind = 'Node')
    OR ("group" = 'reliablesyncs.kubeedge.io' AND kind IN ('ObjectSync', 'ClusterObjectSync'))
    OR ("group" = 'coordination.k8s.io' AND kind = 'Lease')
    OR ("group" IN ('', 'events.k8s.io') AND kind = 'Event'));
