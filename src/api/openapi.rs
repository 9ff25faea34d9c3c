//! The description of the API: written by hand beside the handlers, held to them by tests.

/// OpenAPI 3.1, as JSON.
pub const fn document() -> &'static str {
    include_str!("openapi.json")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::document;
    use crate::api::problem::Code;

    /// Codes that no single route gives: the router itself does.
    const OF_THE_ROUTER: [&str; 2] = ["not_found", "method_not_allowed"];

    #[test]
    fn it_names_exactly_the_codes_that_exist_each_under_its_status() {
        let document: Value = serde_json::from_str(document()).expect("valid JSON");
        let mut described = BTreeSet::new();
        for operation in
            document["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object()).flatten()
        {
            for (status, response) in operation.1["responses"].as_object().expect("responses") {
                let words = response["description"].as_str().unwrap_or("").split('`').skip(1).step_by(2);
                described.extend(words.map(|code| (status.clone(), code.to_owned())));
            }
        }
        let codes = Code::ALL.into_iter().filter(|code| !OF_THE_ROUTER.contains(&code.name()));
        let known: BTreeSet<_> = codes.map(|code| (code.parts().0.to_string(), code.name().to_owned())).collect();
        assert_eq!(described, known);
    }
}
