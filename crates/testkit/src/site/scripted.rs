//! A node whose frames the test writes.

use std::net::SocketAddr;

use edgesync_object::Budget;
use edgesync_protocol::change::Change;
use edgesync_protocol::digest::{Digest, Epoch};
use edgesync_protocol::frame::{Hello, HelloRequest, Lease, Received, Up, Upload, UploadConfirm, Welcome};
use edgesync_protocol::upload::{Lane, UploadItem};
use edgesync_transport::link::LinkOptions;
use edgesync_transport::tls::{Client as Tls, Clock, Trust};
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::fleet::stored;
use super::{Agent, Forger};

/// The largest frame in either direction.
const MAX_FRAME: usize = 256 << 10;

/// A scripted node, connected to a broker. It holds no objects.
pub struct Scripted {
    name: String,
    forger: Forger,
    sessions: u32,
    /// The last sequence number of each lane.
    pub sent: [u64; 3],
}

impl Scripted {
    /// Connects a node of this name without TLS.
    pub async fn connect(name: &str, broker: SocketAddr) -> Self {
        Self::over(name, LinkOptions::new(&broker.ip().to_string(), broker.port(), name)).await
    }

    /// Connects with the certificate of a device that has joined, in place of its agent.
    pub async fn connect_as(agent: &Agent, broker: SocketAddr) -> Self {
        let files = stored(agent);
        let mut options = LinkOptions::new(&broker.ip().to_string(), broker.port(), &agent.node);
        let tls = Tls::new(&Trust::new(files.ca), Some(&files.identity), Clock::system([]));
        options.secure(tls.unwrap());
        Self::over(&agent.node, options).await
    }

    async fn over(name: &str, options: LinkOptions) -> Self {
        let down = format!("edgesync/v1/nodes/{name}/down");
        let forger = Forger::start_over(options, &down).await;
        Self { name: name.to_owned(), forger, sessions: 0, sent: [0; 3] }
    }

    /// Returns the id of the current session.
    pub fn session(&self) -> String {
        format!("session-{}", self.sessions)
    }

    async fn say(&self, frame: Up) {
        let topic = format!("edgesync/v1/nodes/{}/up", self.name);
        self.forger.send(&topic, &frame.encode(usize::MAX).unwrap()).await;
    }

    /// Begins the next session with a Hello.
    pub async fn hello(&mut self) {
        self.sessions += 1;
        self.say(Up::Hello(Hello {
            node: self.name.clone(),
            agent: "scripted".into(),
            session: self.session(),
            epoch: Epoch(7),
            revision: 0,
            confirmed: None,
            count: 0,
            digest: Digest::default(),
            incarnation: None,
            max_frame: u32::try_from(MAX_FRAME).unwrap(),
            max_object: 1 << 20,
            partial: None,
            patches: false,
            lease: None,
            metered: None,
        }))
        .await;
    }

    /// Begins a session, and waits for its Welcome.
    pub async fn welcome(&mut self) -> Welcome {
        self.hello().await;
        loop {
            match self.receive().await {
                Received::Welcome(welcome) if welcome.session == self.session() => return welcome,
                Received::HelloRequest(request) if request.removed => panic!("{request:?}"),
                _ => {}
            }
        }
    }

    async fn receive(&mut self) -> Received {
        Received::decode(&self.forger.receive().await, &mut Budget::of(MAX_FRAME), MAX_FRAME).unwrap()
    }

    /// Waits until an object of this name is sent to the node: it is placed there.
    pub async fn is_sent(&mut self, name: &str) {
        let is_it = |change: &Change| matches!(change, Change::Put(put) if *put.name == *name);
        loop {
            if let Received::Objects(objects) = self.receive().await
                && objects.changes.iter().any(is_it)
            {
                return;
            }
        }
    }

    /// Waits for the request of another Hello.
    pub async fn requested(&mut self) -> HelloRequest {
        loop {
            if let Received::HelloRequest(request) = self.receive().await {
                return request;
            }
        }
    }

    /// Renews the Lease of the node.
    pub async fn renew(&self, seconds: u32) {
        let now = Timestamp::now().as_microsecond();
        let session = self.session();
        self.say(Up::Lease(Lease { session, seconds, acquired: 5, renewed: now, check_in: None })).await;
    }

    /// Uploads items of a lane, and waits for their confirm.
    pub async fn upload(&mut self, lane: Lane, contents: &[Value]) -> UploadConfirm {
        let confirmed = self.sent[lane.index()];
        let raw = |content: &Value| RawValue::from_string(content.to_string()).unwrap();
        let items = contents.iter().zip(confirmed + 1..);
        let items: Vec<_> = items.map(|(content, seq)| UploadItem { seq, content: raw(content) }).collect();
        self.sent[lane.index()] += items.len() as u64;
        let (session, outbox) = (self.session(), "outbox".into());
        self.say(Up::Upload(Upload { session, outbox, lane, confirmed, items })).await;
        loop {
            if let Received::UploadConfirm(confirm) = self.receive().await {
                return confirm;
            }
        }
    }

    /// Uploads a report of the node.
    pub async fn report(&mut self) {
        let disk = json!({"type": "edgesync.io/DiskPressure", "status": "False", "reason": "SufficientDisk"});
        let report = json!({
            "labels": {"node-role.kubernetes.io/edge": "", "site": "plant-7"},
            "status": {"nodeInfo": {"kubeletVersion": "edgesync/1"}, "conditions": []},
            "conditions": [disk],
        });
        let confirm = self.upload(Lane::Status, &[json!({ "node": report })]).await;
        assert_eq!((confirm.last.status, confirm.refused), (self.sent[0], vec![]));
    }
}
