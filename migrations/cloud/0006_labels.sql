-- Labels beside the names: a selector is answered from the index. See docs/decisions/0006-api-machinery.md.

ALTER TABLE objects ADD COLUMN labels TEXT;  -- metadata.labels as JSON text; NULL without any
UPDATE objects SET labels = nullif(body -> '$.metadata.labels', '{}')
  WHERE sync_node IS NULL AND json_type(body, '$.metadata.labels') = 'object';

-- Names stay unique without UNIQUE: whoever inserts has looked for the name in the same transaction.
DROP INDEX objects_by_name;
CREATE INDEX objects_by_name ON objects (resource_id, namespace, name, labels);
