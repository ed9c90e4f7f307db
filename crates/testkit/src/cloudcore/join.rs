//! Join service of the CloudCore model.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use super::Shared;

/// Maximum size of a request in bytes.
const MAX_REQUEST: usize = 1 << 20;

type Answer = (StatusCode, Vec<u8>);

pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let tls = shared.authority.joins();
    while let Ok((stream, _)) = listener.accept().await {
        if shared.is_refusing() {
            continue;
        }
        let (shared, tls) = (shared.clone(), tls.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
            let service = service_fn(move |request| {
                let (shared, shown) = (shared.clone(), shown.clone());
                async move { Ok::<_, Infallible>(respond(answer(&shared, shown.as_ref(), request).await)) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn respond((status, body): Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    (status, text.into().into_bytes())
}

async fn answer(
    shared: &Shared,
    shown: Option<&CertificateDer<'static>>,
    request: Request<Incoming>,
) -> Answer {
    let path = request.uri().path().to_owned();
    let known = path == "/ca.crt" || path == "/edge.crt" || path.starts_with("/node/");
    if !known {
        return plain(StatusCode::NOT_FOUND, "404: Page Not Found");
    }
    if request.method() != Method::GET {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    match path.strip_prefix("/node/") {
        Some(node) => match shared.core().object("node", "", node) {
            Some(_) => plain(StatusCode::OK, "Node found"),
            None => plain(StatusCode::NOT_FOUND, "Node not found"),
        },
        None if path == "/ca.crt" => (StatusCode::OK, shared.authority.certificate().to_vec()),
        None => edge_certificate(shared, shown, request).await,
    }
}

async fn edge_certificate(
    shared: &Shared,
    shown: Option<&CertificateDer<'static>>,
    request: Request<Incoming>,
) -> Answer {
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let node = header("NodeName");
    let allowed = match shown {
        Some(certificate) => check_certificate(shared, certificate, &node),
        None => check_token(shared, &header("Authorization")),
    };
    if let Err(why) = allowed {
        return plain(StatusCode::UNAUTHORIZED, why);
    }
    let Ok(body) = Limited::new(request.into_body(), MAX_REQUEST).collect().await else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "failed to read the request");
    };
    match shared.authority.sign(&body.to_bytes()) {
        Ok(certificate) => (StatusCode::OK, certificate),
        Err(error) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!(
                "failed to sign certs for edgenode {node}, err: fail to signCerts, err: failed to parse csr, err: {error}"
            ),
        ),
    }
}

fn check_token(shared: &Shared, header: &str) -> Result<(), String> {
    if header.is_empty() {
        return Err("token validation failure, token is empty".into());
    }
    let words: Vec<&str> = header.split(' ').collect();
    let [_, jwt] = words.as_slice() else {
        return Err("token validation failure, token cannot be split".into());
    };
    shared.authority.check_jwt(jwt).map_err(|why| format!("token validation failure, err: {why}"))
}

fn check_certificate(shared: &Shared, certificate: &CertificateDer<'_>, node: &str) -> Result<(), String> {
    let failed = |why: &str| format!("failed to verify the certificate for edgenode: {node}, err: {why}");
    let verified = shared.authority.check(certificate);
    verified.map_err(|why| failed(&format!("failed to verify edge certificate: {why}")))?;
    let certificate = edgesync_transport::tls::Certificate::from_der("a test", certificate);
    let is_node = certificate.is_ok_and(|certificate| {
        let subject = certificate.subject();
        subject.organization == "system:nodes" && subject.common_name == format!("system:node:{node}")
    });
    if is_node { Ok(()) } else { Err(failed("request node name is not match with the certificate")) }
}
