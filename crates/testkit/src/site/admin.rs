//! Requests of the admin protocol.

use edgesync_admin::{Answer, Method, Route, read};
use edgesync_api::{Client, ClientError};
use serde_json::Value;

/// Sends a request without a body, and parses the response.
///
/// # Errors
/// The server refuses the request or does not respond.
///
/// # Panics
/// The response is not of this type. A test that waits for a value must not take a missing key
/// for a value that has yet to come.
pub async fn ask<T: Answer>(client: &Client, route: Route<'_>) -> Result<T, ClientError> {
    let path = route.path();
    let answer: Value = match route.method() {
        Method::Get => client.get(&path).await?,
        Method::Post => client.post(&path, &Value::Null).await?,
    };
    Ok(read(&answer).unwrap_or_else(|error| panic!("{} {path}: {error}", route.method().as_str())))
}

#[cfg(test)]
mod tests {
    use edgesync_admin::agent::AgentStatus;
    use edgesync_api::Limits;

    use super::*;
    use crate::serving::Running;

    /// [`Echo`](crate::serving::Echo) answers with two keys of the status.
    #[tokio::test]
    #[should_panic(expected = "parse agent status: missing field `agent`")]
    async fn response_without_a_key_fails_with_its_name() {
        let running = Running::cloud(Limits::cloud()).await;
        let _: Result<AgentStatus, _> = ask(&running.client(), Route::Status).await;
    }
}
