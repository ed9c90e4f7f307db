//! Sessions: WebSockets, with the frame sizes of the real CloudCore.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::{Fault, Shared};
use edgesync_kubeedge::model::{CloudCore, Connection};

/// Maximum size of a frame in bytes.
const FRAME: usize = 4082;

/// Any stream that a session can use.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let tls = shared.authority.sessions();
    while let Ok((stream, _)) = listener.accept().await {
        if shared.is_refusing() {
            continue;
        }
        let (shared, tls) = (shared.clone(), tls.clone());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let stream: Box<dyn Stream> = if shared.plain {
                Box::new(stream)
            } else {
                match tls.accept(stream).await {
                    Ok(stream) => Box::new(stream),
                    Err(_) => return,
                }
            };
            upgrade(&shared, stream).await;
        });
    }
}

#[expect(clippy::result_large_err, reason = "the type of the library's callback")]
async fn upgrade(shared: &Shared, stream: Box<dyn Stream>) {
    let (mut node, mut reads) = (String::new(), false);
    let header = |request: &Request, name: &str| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let look = |request: &Request, response: Response| {
        node = header(request, "node_id");
        reads = header(request, "ConnectionUse") == "msg";
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, look).await else { return };
    let connection = shared.with(|core, now| core.connect(now, &node));
    serve(shared, socket, connection, reads).await;
    shared.with(|core, _| core.disconnect(connection));
}

async fn serve(
    shared: &Shared,
    mut socket: WebSocketStream<Box<dyn Stream>>,
    connection: Connection,
    reads: bool,
) {
    let mut changes = shared.changes.subscribe();
    loop {
        changes.mark_unchanged();
        let next = shared.core().poll(connection);
        if let Some(text) = next {
            if !send(shared, &mut socket, text).await {
                return;
            }
            continue;
        }
        if !shared.core().is_open(connection) {
            return;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            message = socket.next(), if reads => match message {
                Some(Ok(Message::Text(text))) => receive(shared, connection, text.as_str()),
                Some(Ok(Message::Binary(bytes))) => receive(shared, connection, &String::from_utf8_lossy(&bytes)),
                // Pongs are written with the next flush.
                Some(Ok(Message::Ping(_))) => if socket.flush().await.is_err() { return },
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
        }
    }
}

fn receive(shared: &Shared, connection: Connection, text: &str) {
    shared.with(|core: &mut CloudCore, now| core.receive(now, connection, text));
}

/// Sends text in frames. Returns whether the connection stays open.
async fn send(shared: &Shared, socket: &mut WebSocketStream<Box<dyn Stream>>, text: String) -> bool {
    let (size, pause) = match shared.fault() {
        Fault::None => (FRAME, Duration::ZERO),
        Fault::Slow { bytes, pause } => (bytes.max(1), pause),
        Fault::CutMidFrame => {
            // A frame with a length greater than its content.
            let half = &text.as_bytes()[..(text.len() / 2).min(100)];
            let mut bytes = vec![0x81, 126];
            bytes.extend(u16::try_from(text.len().clamp(126, FRAME)).unwrap_or(126).to_be_bytes());
            bytes.extend(half);
            let stream = socket.get_mut();
            let _ = stream.write_all(&bytes).await;
            let _ = stream.flush().await;
            return false;
        }
    };
    let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
    let last = chunks.len().saturating_sub(1);
    for (at, chunk) in chunks.into_iter().enumerate() {
        let code = if at == 0 { Data::Text } else { Data::Continue };
        let frame = Frame::message(chunk.to_vec(), OpCode::Data(code), at == last);
        if socket.send(Message::Frame(frame)).await.is_err() {
            return false;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    true
}
