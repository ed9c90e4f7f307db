//! Browser protection: the page's headers, and checks of requests that a browser sends. A
//! cross-site page can make a browser send requests here with an operator's certificate, or to
//! loopback. Pure.

use edgesync_admin::Route;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LOCATION, ORIGIN};
use hyper::{Method, Response, StatusCode};

use super::auth::{Caller, Peer, Role};
use super::discovery::{Digest, matches_etag};
use super::extension::PageFile;
use super::request::{Discovery, Refusal, Request};
use super::response::{self, ResponseBody};

/// Header with the relation between this server and the site that caused a request.
const SITE: &str = "sec-fetch-site";
/// Header that a page can send to its own origin only: cross-origin, a browser sends a preflight
/// first and gets no permission.
pub(super) const MARK: &str = "x-edgesync-page";

/// Loads nothing from other origins, allows no inline script, and forbids framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Headers of every file of the page.
const HEADERS: [(&str, &str); 8] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-embedder-policy", "require-corp"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
];

/// Returns the reason to refuse a request that a cross-site page caused.
pub(super) fn refusal(
    method: &Method,
    headers: &HeaderMap,
    request: &Result<Request, Refusal>,
) -> Option<&'static str> {
    let site = headers.get(SITE);
    let is_own = site.is_none_or(|site| site == "same-origin" || site == "none");
    // The page itself holds no data: links to it are harmless.
    let is_page = matches!(request, Ok(Request::Page(_) | Request::Discovery(Discovery::Root)))
        && method == Method::GET;
    if !is_own && !is_page {
        return Some("requests of web pages must come from this server: Sec-Fetch-Site names another one");
    }
    let is_browser = site.is_some() || headers.contains_key(ORIGIN);
    let changes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    (is_browser && changes && !headers.contains_key(MARK))
        .then_some("requests of web pages that change something need the header X-Edgesync-Page")
}

/// Limits a page key, the credential for plain TCP where pages are served, to reads and the page's
/// actions ([`Route::is_action_of_the_page`]); the actions keep the key's role.
pub(super) fn narrowed(caller: Caller, peer: &Peer, request: &Request) -> Caller {
    let is_page = matches!(peer, Peer::Tcp(_));
    let acts = match request {
        Request::Extension { method, path, .. } => {
            Route::parse(method, path).is_some_and(|route| route.is_action_of_the_page())
        }
        _ => false,
    };
    if !is_page || acts {
        return caller;
    }
    Caller { role: caller.role.min(Role::View), ..caller }
}

/// Returns whether an extension request is for a stream of lines.
pub(super) fn is_watch(request: &Request) -> bool {
    let Request::Extension { query, .. } = request else { return false };
    query.iter().any(|(key, value)| key == "watch" && matches!(value.as_str(), "1" | "true"))
}

/// Returns whether the client prefers HTML to data.
pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|one| one.split(';').next().is_some_and(|media| media.trim() == "text/html"))
}

/// Redirects a browser to the page.
pub(super) fn redirect_to_page() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(None));
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/page/"));
    response
}

/// Responds with a file of the page.
pub(super) fn page(file: &PageFile, if_none_match: Option<&str>) -> Response<ResponseBody> {
    let mut digest = Digest::default();
    digest.add(&String::from_utf8_lossy(file.body));
    let tag = format!("\"{}\"", digest.hex());
    let mut response = match if_none_match.is_some_and(|given| matches_etag(given, &tag)) {
        true => response::not_modified(),
        false => Response::new(ResponseBody::Whole(Some(file.body.into()))),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.media_type));
    // Browsers must revalidate: the files belong to the running version.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn refused(method: &Method, path: &str, pairs: &[(&'static str, &str)]) -> bool {
        let request = Request::parse(method.as_str(), path, None);
        refusal(method, &headers(pairs), &request).is_some()
    }

    #[test]
    fn cross_site_requests_are_refused() {
        for site in ["cross-site", "same-site", "else"] {
            for path in ["/edgesync/v1/nodes", "/api/v1/nodes", "/metrics", "/nonsense"] {
                assert!(refused(&Method::GET, path, &[(SITE, site)]), "{site} {path}");
                assert!(refused(&Method::POST, path, &[(SITE, site), (MARK, "1")]), "{site} {path}");
            }
            assert!(!refused(&Method::GET, "/page/", &[(SITE, site)]), "a link to the page");
            assert!(refused(&Method::POST, "/page/", &[(SITE, site)]));
        }
        for site in ["same-origin", "none"] {
            assert!(!refused(&Method::GET, "/edgesync/v1/nodes", &[(SITE, site)]), "{site}");
        }
    }

    #[test]
    fn browser_writes_need_the_page_header() {
        let path = "/edgesync/v1/nodes/a/remove";
        for from in [(SITE, "same-origin"), ("origin", "https://cloud:1")] {
            assert!(refused(&Method::POST, path, &[from]), "{from:?}");
            assert!(!refused(&Method::POST, path, &[from, (MARK, "1")]), "{from:?}");
        }
        assert!(!refused(&Method::POST, path, &[]), "kubectl and curl are no browsers");
        assert!(!refused(&Method::DELETE, "/api/v1/nodes/a", &[]));
    }

    #[test]
    fn page_key_reads_and_acts_on_nodes_and_roll_outs_only() {
        let caller = Caller { name: "page key of ada".into(), role: Role::Admin, ..Caller::default() };
        let (tcp, unix) = (Peer::Tcp(([127, 0, 0, 1], 1).into()), Peer::Unix { uid: Some(0) });
        let role = |peer: &Peer, method: &str, path: &str| {
            let request = Request::parse(method, path, None).unwrap();
            narrowed(caller.clone(), peer, &request).role
        };
        let actions = [
            "nodes/a/remove",
            "nodes/a/admit",
            "nodes/a/confirm-deletions",
            "rollouts/rules/a",
            "rollouts/rules/plant/a",
        ];
        for path in actions {
            assert_eq!(role(&tcp, "POST", &format!("/edgesync/v1/{path}")), Role::Admin, "{path}");
        }
        for path in ["nodes/a/revoke", "nodes/a/forget", "operators", "tokens", "broker-config", "a/b/remove"]
        {
            assert_eq!(role(&tcp, "POST", &format!("/edgesync/v1/{path}")), Role::View, "{path}");
            assert_eq!(role(&unix, "POST", &format!("/edgesync/v1/{path}")), Role::Admin, "{path}");
        }
        for (method, path) in [("GET", "/api/v1/secrets"), ("DELETE", "/api/v1/nodes/a")] {
            assert_eq!(role(&tcp, method, path), Role::View, "{path}");
        }
    }

    #[test]
    fn page_at_the_root_is_for_html_clients_only() {
        let wants = |accept: &str| wants_html(&headers(&[("accept", accept)]));
        assert!(wants("text/html,application/xhtml+xml,*/*;q=0.8"));
        assert!(!wants("application/json, */*"));
        assert!(!wants("*/*"));
        assert!(!wants_html(&HeaderMap::new()));
    }

    #[test]
    fn page_file_has_a_tag_and_a_strict_policy() {
        let file = PageFile { media_type: "text/css", body: b"a{}" };
        let first = page(&file, None);
        assert_eq!(first.status(), 200);
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        let again = page(&file, Some(&tag));
        assert_eq!(again.status(), 304);
        for response in [first, again] {
            let policy = response.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        }
    }
}
