-- The Events of each node by age, so that it has only so many of them: the node that has made an Event is in an annotation.

CREATE INDEX objects_by_maker ON objects (body ->> '$.metadata.annotations."edgesync.io/node"', changed)
  WHERE changed IS NOT NULL;
