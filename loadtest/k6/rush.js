// The buyers of `loadtest run rush` as a k6 script.
//
//   k6 run -e URLS=http://127.0.0.1:8080 -e SALE=7 -e SECRET="$SECKILL__AUTH__JWT_SECRET" loadtest/k6/rush.js
//
// k6 sees the answers and not the stores. Its thresholds tell whether the service kept its contract under load. Only
// the service's own audit tells whether anything was oversold or lost:
//
//   seckill sale audit 7
//
// The service must believe X-Forwarded-For from where k6 runs (http.trusted_proxies): every buyer has an address of
// its own. k6 drops a click that it cannot send in time; dropped clicks fail the run.

import http from 'k6/http';
import crypto from 'k6/crypto';
import encoding from 'k6/encoding';
import exec from 'k6/execution';
import { SharedArray } from 'k6/data';
import { sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';

const text = (name, otherwise) => __ENV[name] || otherwise;
const number = (name, otherwise) => {
  const value = Number(text(name, otherwise));
  if (!Number.isFinite(value) || value < 0) {
    throw new Error(`${name} must be a number from 0 up`);
  }
  return value;
};

// Base URLs of the nodes, with commas between them.
const URLS = text('URLS', 'http://127.0.0.1:8080').split(',').map((url) => url.replace(/\/+$/, ''));
const SALE = text('SALE', '');
const BUYERS = Math.max(1, Math.floor(number('BUYERS', 20000)));
// Seconds from the start of the sale to the last buyer's first click. With 0 all of them click at once, which takes
// a virtual user for each.
const WINDOW_S = number('WINDOW_S', 10);
// Seconds before the start in which the early ones click.
const LEAD_S = 1;
const HASTY = number('HASTY', 0.1);
const EARLY = number('EARLY', 0.05);
const KEYED = number('KEYED', 0.1);
const MAX_QUANTITY = Math.max(1, Math.floor(number('MAX_QUANTITY', 1)));
const SEED = Math.floor(number('SEED', 1));
// Seconds for which a buyer without a decision keeps asking.
const PATIENCE_S = number('PATIENCE_S', 60);
const TIMEOUT_S = number('TIMEOUT_S', 5);
const VUS = Math.max(1, Math.floor(number('VUS', 500)));
const SECRET = text('SECRET', '');
// Instead of SECRET: a file with one token on each line, without the word Bearer, one for each buyer.
const TOKENS = text('TOKENS', '');

if (!/^[1-9][0-9]*$/.test(SALE)) {
  throw new Error('SALE must be the id of a sale');
}
if ((SECRET === '') === (TOKENS === '')) {
  throw new Error('either SECRET or TOKENS is needed');
}

const tokens = TOKENS === '' ? null : new SharedArray('tokens', () => open(TOKENS).split('\n').filter((line) => line !== ''));
if (tokens !== null && tokens.length < BUYERS) {
  throw new Error(`${TOKENS} has ${tokens.length} tokens for ${BUYERS} buyers`);
}

// Every code with which a purchase may be refused. Any other code breaks the contract.
const REFUSALS = [
  'rate_limited', 'blocked', 'challenge_required', 'sold_out', 'not_enough_left', 'already_purchased',
  'sale_not_started', 'sale_paused', 'sale_ended', 'sale_not_found', 'invalid_request', 'unauthorized', 'forbidden',
  'body_too_large', 'unsupported_media_type', 'idempotency_key_reused',
];

// Every answer to a purchase, in exactly one of: accepted, a refusal's code, unconfirmed, broken_contract.
const answers = new Counter('answers');
// 5xx other than 503, and answers that the contract does not know.
const broken = new Counter('broken_contract');
// Buyers that found an order after an unknown outcome, and those that gave up.
const found = new Counter('found');
const gaveUp = new Counter('gave_up');
const acceptedMs = new Trend('accepted_ms', true);
const refusedMs = new Trend('refused_ms', true);

// A threshold that always holds makes k6 show the figure.
const shown = Object.fromEntries([...REFUSALS, 'unconfirmed'].map((code) => [`answers{code:${code}}`, ['count>=0']]));

const early = Math.round(BUYERS * EARLY);

export const options = {
  scenarios: scenarios(),
  // `setup` waits for the start of the sale.
  setupTimeout: '24h',
  summaryTrendStats: ['count', 'med', 'p(99)', 'p(99.9)', 'max'],
  thresholds: {
    ...shown,
    'answers{code:accepted}': ['count>0'],
    broken_contract: ['count==0'],
    gave_up: ['count==0'],
    dropped_iterations: ['count==0'],
  },
};

// Refusals and 503 are answers, not failures.
http.setResponseCallback(http.expectedStatuses({ min: 200, max: 499 }, 503));

function scenarios() {
  const all = { rush: { exec: 'rush', startTime: `${early > 0 ? LEAD_S : 0}s`, gracefulStop: `${PATIENCE_S + TIMEOUT_S}s`, ...arrivals() } };
  if (early > 0) {
    all.early = {
      exec: 'tooSoon',
      executor: 'constant-arrival-rate',
      rate: early,
      timeUnit: `${LEAD_S}s`,
      duration: `${LEAD_S}s`,
      preAllocatedVUs: Math.min(VUS, early),
    };
  }
  return all;
}

// Most buyers click early: a share sqrt(t / window) of them by time t. The window is cut into steps of one rate each,
// with the same number of buyers per step.
function arrivals() {
  if (WINDOW_S === 0) {
    return { executor: 'per-vu-iterations', vus: BUYERS, iterations: 1, maxDuration: `${PATIENCE_S + TIMEOUT_S}s` };
  }
  const steps = 10;
  const stages = [];
  let startRate = 0;
  for (let step = 0; step < steps; step += 1) {
    const end = Math.round(WINDOW_S * 1000 * ((step + 1) / steps) ** 2);
    const begin = Math.round(WINDOW_S * 1000 * (step / steps) ** 2);
    const length = Math.max(1, end - begin);
    // Per minute: rates are whole numbers.
    const rate = Math.round((BUYERS / steps) * (60000 / length));
    if (step === 0) {
      startRate = rate;
    } else {
      stages.push({ duration: '0s', target: rate });
    }
    stages.push({ duration: `${length}ms`, target: rate });
  }
  return { executor: 'ramping-arrival-rate', startRate, timeUnit: '1m', stages, preAllocatedVUs: VUS };
}

// Waits until the sale is about to start, by the service's clock.
export function setup() {
  const response = http.get(`${URLS[0]}/api/v1/sales/${SALE}`);
  if (response.status !== 200) {
    throw new Error(`sale ${SALE} cannot be read: ${response.status} ${response.body}`);
  }
  const sale = response.json();
  if (sale.state !== 'open') {
    throw new Error(`sale ${SALE} is ${sale.state}; open it first`);
  }
  const wait = (Date.parse(sale.starts_at) - Date.parse(sale.server_time)) / 1000 - (early > 0 ? LEAD_S : 0);
  if (wait > 0) {
    sleep(wait);
  }
}

// The first buyers also click before the start, and are the first again after it.
export function tooSoon() {
  click(buyerOf(exec.scenario.iterationInTest), 1, 0);
}

export function rush() {
  const buyer = buyerOf(exec.scenario.iterationInTest);
  const undecided = click(buyer, buyer.clicks, 1);
  if (undecided) {
    askUntilDecided(buyer);
  }
}

// The same buyer for the same number and seed.
function buyerOf(count) {
  // Rates are rounded, so k6 may start a few buyers more than planned. They are new buyers if there are tokens for
  // them.
  const index = tokens === null ? count : count % tokens.length;
  const draw = randomOf(index);
  const hasty = draw() < HASTY;
  const clicks = hasty ? 2 + Math.floor(draw() * 4) : 1;
  const key = draw() < KEYED ? `key-${index}` : null;
  const quantity = 1 + Math.floor(draw() * MAX_QUANTITY);
  const headers = {
    Authorization: `Bearer ${tokens === null ? sign(`buyer-k6-${SEED}-${index}`) : tokens[index]}`,
    'Content-Type': 'application/json',
    'X-Forwarded-For': address(index),
  };
  if (key !== null) {
    headers['Idempotency-Key'] = key;
  }
  return { index, clicks, keyed: key !== null, headers, body: JSON.stringify({ quantity }) };
}

// Numbers from 0 to 1 that depend on the seed and the buyer alone.
function randomOf(index) {
  const digits = crypto.sha256(`${SEED}/${index}`, 'hex');
  let at = 0;
  return () => {
    at += 8;
    return parseInt(digits.slice(at - 8, at), 16) / 2 ** 32;
  };
}

function sign(user) {
  const part = (value) => encoding.b64encode(JSON.stringify(value), 'rawurl');
  const exp = Math.floor(Date.now() / 1000) + 24 * 3600;
  const signed = `${part({ alg: 'HS256', typ: 'JWT' })}.${part({ sub: user, exp })}`;
  return `${signed}.${crypto.hmac('sha256', SECRET, signed, 'base64rawurl')}`;
}

// 10.0.0.0/8 holds 16 million addresses of their own.
function address(index) {
  const number = 1 + (index % 0xfffffe);
  return `10.${(number >> 16) & 255}.${(number >> 8) & 255}.${number & 255}`;
}

// One or several clicks at once, each on the next node. Returns whether none of them was decided.
function click(buyer, times, nth) {
  const requests = [];
  for (let n = 0; n < times; n += 1) {
    const url = URLS[(buyer.index + nth + n) % URLS.length];
    const params = { headers: buyer.headers, timeout: `${TIMEOUT_S}s`, tags: { name: 'purchase' } };
    requests.push({ method: 'POST', url: `${url}/api/v1/sales/${SALE}/purchases`, body: buyer.body, params });
  }
  const outcomes = http.batch(requests).map(count);
  return outcomes.some((outcome) => outcome === 'unconfirmed') && !outcomes.includes('accepted');
}

// Counts one answer and names its outcome.
function count(response) {
  const outcome = outcomeOf(response);
  answers.add(1, { code: outcome });
  if (outcome === 'accepted') {
    acceptedMs.add(response.timings.duration);
  } else if (REFUSALS.includes(outcome)) {
    refusedMs.add(response.timings.duration);
  }
  // After any 5xx the purchase may have succeeded, but only 503 is part of the contract.
  if (outcome === 'broken_contract' || (response.status >= 500 && response.status !== 503)) {
    broken.add(1);
  }
  return outcome;
}

function outcomeOf(response) {
  if (response.status === 0 || response.status >= 500) {
    return 'unconfirmed';
  }
  let body = null;
  try {
    body = response.json();
  } catch (error) {
    return 'broken_contract';
  }
  if (response.status === 202) {
    return body && body.order_id ? 'accepted' : 'broken_contract';
  }
  return response.status >= 400 && body && REFUSALS.includes(body.code) ? body.code : 'broken_contract';
}

// Unknown is not no: polls the order, or repeats the key, until there is a decision.
function askUntilDecided(buyer) {
  const deadline = Date.now() + PATIENCE_S * 1000;
  for (let nth = 2; Date.now() < deadline; nth += 1) {
    sleep(Math.min(1, 0.1 * 2 ** (nth - 2)));
    if (!buyer.keyed) {
      const url = `${URLS[(buyer.index + nth) % URLS.length]}/api/v1/sales/${SALE}/order`;
      const seen = http.get(url, { headers: buyer.headers, timeout: `${TIMEOUT_S}s`, tags: { name: 'order' } });
      if (seen.status === 200) {
        found.add(1);
        return;
      }
      if (seen.status !== 404) {
        continue;
      }
    }
    if (!click(buyer, 1, nth)) {
      return;
    }
  }
  gaveUp.add(1);
}

export function teardown() {
  console.log(`k6 does not see the stores. To check whether sale ${SALE} was oversold: seckill sale audit ${SALE}`);
}
